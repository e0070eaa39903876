"""One point of a throughput run: SGLang's own client, ``python -m sglang.bench_serving``, against a running server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evals.server import Server
from evals.throughput_arms import Launch, ThroughputArm
from evals.throughput_results import Measurement, Point, Quantiles
from sglang_cp.errors import UsageError

BENCH = (sys.executable, "-m", "sglang.bench_serving")
POINT_TIMEOUT_S = 3600.0
_HELP_TIMEOUT_S = 300.0
_WARM_TOKENS = 32768
"""Of the warm-up: as many requests at once as one extend can hold, for kernels are compiled by batch size too."""


class BenchError(RuntimeError):
    """A point that was not measured, or not in full; the message says why."""


def require_client() -> None:
    """Raise UsageError where SGLang's client cannot be started: it imports packages that a server does without."""
    try:
        ended = subprocess.run([*BENCH, "--help"], capture_output=True, text=True, timeout=_HELP_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise UsageError(
            f"`python -m sglang.bench_serving --help` took longer than {_HELP_TIMEOUT_S:.0f} s."
        ) from error
    if ended.returncode:
        why = (ended.stderr.strip() or "no reason given").splitlines()[-1]
        raise UsageError(f"SGLang's client, python -m sglang.bench_serving, does not start here: {why}.")


def bench_command(point: Point, url: str, model: Path, output: Path) -> list[str]:
    """The client's command line. Prompts are token ids made from the seed: no network, exact lengths."""
    options = {
        "--backend": "sglang",
        "--base-url": url,
        "--model": model,
        "--tokenizer": model,
        "--dataset-name": "random-ids",
        "--random-input-len": point.input_tokens,
        "--random-output-len": point.output_tokens,
        "--random-range-ratio": 1.0,
        "--num-prompts": point.prompts,
        "--max-concurrency": point.concurrency,
        "--warmup-requests": min(point.concurrency, 2 + _WARM_TOKENS // point.input_tokens),
        "--seed": point.seed,
        "--output-file": output,
    }
    words = [str(word) for option in options.items() for word in option]
    return [*BENCH, *words, "--tokenize-prompt", "--flush-cache", "--disable-tqdm", "--output-details"]


def measure(launch: Launch, arm: ThroughputArm, point: Point, server: Server, folder: Path) -> Measurement:
    """Measure one point; ``folder`` takes the client's log.

    Raises:
        BenchError: the client failed, or not every request was answered with all its tokens.
        ServerError: the server does not answer.
    """
    server.flush_cache()
    before = _cp_counters(server.info())
    result = _bench(point, server.url, launch.model, folder)
    info = server.info()
    after = _cp_counters(info)
    _require_all_answered(point, result)
    state = info["internal_states"][0]
    return Measurement(
        point=point,
        sglang=info["version"],
        server_args=list(launch.spec(arm).args),
        duration_s=result["duration"],
        total_tok_s=result["total_throughput"],
        output_tok_s=result["output_throughput"],
        ttft_ms=_quantiles(result, "ttft"),
        tpot_ms=_quantiles(result, "tpot"),
        e2e_ms=_quantiles(result, "e2e_latency"),
        cp_counters=None if before is None or after is None else {name: after[name] - before[name] for name in after},
        must_deal_out=arm.must_deal_out(info, point.input_tokens),
        pool_tokens=info["max_total_num_tokens"],
        memory_gb=state.get("memory_usage", {}),
        cp_memory=state.get("sglang_cp_memory"),
    )


def _bench(point: Point, url: str, model: Path, folder: Path) -> dict[str, Any]:
    """What the client wrote of one run."""
    output, log = folder / f"{point.name}.json", folder / f"{point.name}.log"
    output.unlink(missing_ok=True)  # the client appends
    with log.open("w") as stream:
        try:
            ended = subprocess.run(
                bench_command(point, url, model, output),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                timeout=POINT_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"the benchmark took longer than {POINT_TIMEOUT_S:,.0f} s: see {log}.") from error
    try:
        result: dict[str, Any] = json.loads(output.read_text())
    except (OSError, ValueError) as error:
        raise BenchError(f"the benchmark ended with code {ended.returncode} and no result.\n{_end_of(log)}") from error
    finally:
        output.unlink(missing_ok=True)  # megabytes of generated text
    return result


def _require_all_answered(point: Point, result: Mapping[str, Any]) -> None:
    """Raise BenchError for figures that are not those of the whole point."""
    if result["completed"] != point.prompts:
        reason = next(
            (error.strip().splitlines()[-1] for error in result["errors"] if error.strip()), "no reason given"
        )
        raise BenchError(f"{result['completed']} of {point.prompts} requests were answered ({reason}).")
    lengths = set(result["output_lens"])
    if lengths != {point.output_tokens}:
        raise BenchError(f"answers have {sorted(lengths)} tokens, not {point.output_tokens}.")
    if min(result["ttfts"]) <= 0:  # the client takes the first text, not the first token, for the first token
        raise BenchError("an answer had no text, so its first token has no time: serve with a tokenizer that decodes.")


def _quantiles(result: Mapping[str, Any], figure: str) -> Quantiles:
    return Quantiles(median=result[f"median_{figure}_ms"], p99=result[f"p99_{figure}_ms"])


def _cp_counters(info: Mapping[str, Any]) -> Mapping[str, int] | None:
    """CP counters since the server's start; None for a server without sglang-cp."""
    counters: Mapping[str, int] | None = info["internal_states"][0].get("sglang_cp")
    return counters


def _end_of(log: Path, lines: int = 10) -> str:
    text: Sequence[str] = log.read_text(errors="replace").splitlines()
    return "\n".join([f"The end of {log}:", *text[-lines:]])
