"""One CP server under test: plays a stream, compares, and sees that the server gave everything back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from evals.checks import MAX_LOGPROB_NATS
from evals.fuzz.arms import FuzzArm
from evals.fuzz.play import connect, play
from evals.fuzz.reference import Prepared
from evals.fuzz.said import Compared, Outcome, judge
from evals.server import Server, ServerError, ServerSpec, running

_SETTLE_S = 60.0


@dataclass
class Verdict:
    """What a play showed.

    Attributes:
        found: what is wrong, each one sentence; empty if nothing is.
        compared: how much was.
        counters: how the server's CP counters rose.
        broken: the server must be started anew.
    """

    found: list[str] = field(default_factory=list)
    compared: Compared = field(default_factory=Compared)
    counters: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    broken: bool = False


class Bench:
    """One arm's server, started when it is needed, and anew after it broke."""

    def __init__(self, arm: FuzzArm, model: Path, logs: Path, tolerance: float = MAX_LOGPROB_NATS) -> None:
        self._spec: ServerSpec = arm.spec(model)
        self._logs = logs
        self._tolerance = tolerance
        self._stack = contextlib.ExitStack()
        self._server: Server | None = None

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def check(self, prepared: Prepared) -> Verdict:
        """Play a stream and judge it. Raises ServerError if the server cannot be started."""
        if self._server is None:
            self._server = self._stack.enter_context(running(self._spec, self._logs))
        verdict = check(self._server, prepared, self._tolerance)
        if verdict.broken:
            self._server = None
            self._stack.close()
        return verdict


def check(server: Server, prepared: Prepared, tolerance: float = MAX_LOGPROB_NATS) -> Verdict:
    """Play a stream against a running server and judge it."""
    verdict = Verdict()
    started = time.perf_counter()
    try:
        settle(server)
        before = server.cp_counters()
        outcomes = asyncio.run(_play(server.url, prepared))
        verdict.found += judge_all(prepared, outcomes, tolerance, verdict.compared)
        settle(server)
        after = server.cp_counters()
        verdict.counters = {name: after[name] - before[name] for name in after}
    except ServerError as error:
        verdict.found.append(f"the server: {error}")
        verdict.broken = True
    verdict.seconds = time.perf_counter() - started
    return verdict


def judge_all(prepared: Prepared, outcomes: Sequence[Outcome], tolerance: float, compared: Compared) -> list[str]:
    """What is wrong with a stream's outcomes, each sentence with the number of its request."""
    return [
        f"request {number}: {sentence}"
        for number, (request, outcome) in enumerate(zip(prepared.stream.requests, outcomes, strict=True))
        for sentence in judge(request, prepared.expected[request], outcome, tolerance, compared)
    ]


def settle(server: Server) -> None:
    """Wait until nothing runs, empty the cache, and see the pool empty.

    Request slots are seen by the scheduler itself, which ends when one is missing while it is idle.

    Raises:
        ServerError: if requests or tokens stay, or the server died.
    """
    server.flush_cache()  # refused by the server while a request runs or waits
    deadline = time.monotonic() + _SETTLE_S
    while (left := _held(server)) and time.monotonic() < deadline:
        time.sleep(0.02)
    if left:
        raise ServerError(f"{server.name} still holds {left} with nothing to do")


def _held(server: Server) -> str:
    try:
        load = httpx.get(f"{server.url}/v1/loads", timeout=_SETTLE_S).raise_for_status().json()["loads"][0]
    except httpx.HTTPError as error:
        raise ServerError(f"{server.name} at {server.url} does not answer /v1/loads: {error!r}") from error
    names = ("num_running_reqs", "num_waiting_reqs", "num_used_tokens")
    return ", ".join(f"{name} = {load[name]}" for name in names if load[name])


async def _play(url: str, prepared: Prepared) -> list[Outcome]:
    async with connect(url) as client:
        return await play(client, prepared.stream, prepared.prompts)
