"""Real SGLang servers for evaluations: start, ask, stop."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from sglang_cp.errors import UsageError

START_TIMEOUT_S = 600.0
_POLITE_S = 1.0  # SGLang looks for requests that still run, of which there are none, only every 5 s
_STOP_TIMEOUT_S = 20.0


class ServerError(RuntimeError):
    """A server that did not start, or did not answer; the message names its log."""


@dataclass(frozen=True)
class ServerSpec:
    """What to launch: ``python -m sglang.launch_server --model-path model *args`` with ``env`` on top."""

    name: str
    model: Path
    args: Sequence[str] = ()
    env: dict[str, str] = field(default_factory=dict)

    def command(self, port: int) -> list[str]:
        launch = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(self.model)]
        # SGLang would take the ranks' port from the ephemeral range, where a client's connection may be sitting on it.
        ports = ["--port", str(port), "--nccl-port", str(_free_port())]
        return [*launch, "--host", "127.0.0.1", *ports, *self.args]


class Server:
    """A running server's HTTP interface. ``pid``: its leading process, where it was started here."""

    def __init__(self, name: str, url: str, pid: int | None = None) -> None:
        self.name = name
        self.pid = pid
        self.url = url.rstrip("/")
        self._client = httpx.Client(base_url=self.url, timeout=600.0)

    def generate(self, **body: Any) -> Any:
        """POST /generate; raises ServerError with the server's own words if it refuses."""
        return self._call("POST", "/generate", json=body).json()

    def completion(self, **body: Any) -> str:
        """POST /v1/completions, greedily: the text."""
        response = self._call("POST", "/v1/completions", json={"model": "default", "temperature": 0, **body})
        text: str = response.json()["choices"][0]["text"]
        return text

    def stream(self, **body: Any) -> tuple[list[Any], float]:
        """POST /generate, streamed: the whole answer of each prompt, and seconds until the first token of any."""
        started, first = time.perf_counter(), None
        last: dict[int, Any] = {}
        path = "/generate"
        with self._answering(path), self._client.stream("POST", path, json={**body, "stream": True}) as response:
            self._require_ok(response, path)
            for line in response.iter_lines():
                if line.startswith("data:") and "[DONE]" not in line:
                    first = first or time.perf_counter() - started
                    event = json.loads(line.removeprefix("data:"))
                    last[event.get("index", 0)] = event
        if first is None:
            raise ServerError(f"{self.name} closed the stream without a token")
        return [last[index] for index in sorted(last)], first

    def flush_cache(self) -> None:
        """Empty the radix cache, so that the next request prefills its whole prompt.

        The server refuses while a request runs; one that was just answered may still be winding up.
        """
        self._call("POST", "/flush_cache", params={"timeout": 60})

    def update_weights(self, model: Path) -> None:
        """Replace the weights by those of another checkpoint, while the server serves."""
        self._call("POST", "/update_weights_from_disk", json={"model_path": str(model)})

    def info(self) -> dict[str, Any]:
        """The server's arguments and its first scheduler's internal state."""
        info: dict[str, Any] = self._call("GET", "/server_info").json()
        return info

    def cp_counters(self) -> dict[str, int]:
        """CP counters since start (sglang_cp.counters). Raises ServerError for a server without sglang-cp."""
        state = self.info()["internal_states"][0]
        if "sglang_cp" not in state:
            raise ServerError(f"{self.name} at {self.url} reports no CP counters: it runs without sglang-cp")
        counters: dict[str, int] = state["sglang_cp"]
        return counters

    def close(self) -> None:
        self._client.close()

    def _call(self, method: str, path: str, **content: Any) -> httpx.Response:
        with self._answering(path):
            response = self._client.request(method, path, **content)
        self._require_ok(response, path)
        return response

    @contextlib.contextmanager
    def _answering(self, path: str) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPError as error:
            raise ServerError(f"{self.name} at {self.url} does not answer {path}: {error}") from error

    def _require_ok(self, response: httpx.Response, path: str) -> None:
        if response.status_code != httpx.codes.OK:
            response.read()
            raise ServerError(f"{self.name} answered {response.status_code} to {path}: {response.text[:500]}")


def end_on_sigterm() -> None:
    """Let SIGTERM unwind this process as Ctrl-C does, so that it ends the servers it started. Main thread only."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


@contextlib.contextmanager
def log_folder(given: Path | None, name: str) -> Iterator[Path]:
    """``given``, made if it is missing; without it a temporary folder, which goes at the end.

    Raises:
        UsageError: if ``given`` cannot be made or written to.
    """
    if given is not None:
        try:
            given.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=given):
                pass
        except OSError as error:
            raise UsageError(f"The folder {given} cannot be written: {error.strerror}. Name another one.") from error
        yield given
        return
    with tempfile.TemporaryDirectory(prefix=f"sglang-cp-{name}-") as folder:
        yield Path(folder)


@contextlib.contextmanager
def running(spec: ServerSpec, log_dir: Path) -> Iterator[Server]:
    """Start a server in a process group of its own, wait until it answers, end the whole group afterwards.

    Raises:
        ServerError: if it exits or does not answer in time; the message ends with the log's last lines.
    """
    port = _free_port()
    log_path = log_dir / f"{spec.name}-{port}.log"
    with log_path.open("w") as log:
        process = subprocess.Popen(
            spec.command(port),
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**_inherited(), **spec.env},
            start_new_session=True,
        )
    server = Server(spec.name, f"http://127.0.0.1:{port}", process.pid)
    try:
        _wait_until_ready(server, process, log_path)
        yield server
    finally:
        server.close()
        _stop(process)


def _inherited() -> dict[str, str]:
    """This process's environment, but servers may cache byte code: a patched SGLang would be compiled at each start."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _wait_until_ready(server: Server, process: subprocess.Popen[bytes], log_path: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerError(f"{server.name} ended with code {process.returncode} while starting.\n{_tail(log_path)}")
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{server.url}/health", timeout=5.0).status_code == httpx.codes.OK:
                return
        time.sleep(0.5)
    raise ServerError(f"{server.name} did not answer within {START_TIMEOUT_S:.0f} s.\n{_tail(log_path)}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the process group: politely first, then for certain, for a rank may outlive the leader."""
    for sig, seconds in ((signal.SIGTERM, _POLITE_S), (signal.SIGKILL, _STOP_TIMEOUT_S)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sig)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)


def _tail(log_path: Path, lines: int = 30) -> str:
    text = log_path.read_text(errors="replace").splitlines()
    return "\n".join([f"The end of {log_path}:", *text[-lines:]])


def _free_port() -> int:
    """A port that is free now; under 50,000, because SGLang derives others by adding 10,000 and more."""
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise ServerError("No port between 20,000 and 32,000 is free on 127.0.0.1: end servers that were left over.")
