"""Hours of mixed traffic at one CP server: ``python -m evals.soak --minutes 60``.

The fuzzer's streams (:mod:`evals.fuzz.generate`) are played back to back, 8 requests at a time, aborts among them;
every token and logprob is compared with plain SGLang's. Once a minute the traffic pauses: nothing may run or hold
tokens, and the cache is flushed. The memory of the server's processes is sampled; past the warm-up it must not grow by
more than 2 %. Exit code 1 if anything differs, leaks or grows, 2 for unusable input.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from evals.accuracy import one_sentence
from evals.arms import KEEPS_FREED_MEMORY, SPAWNED, tiny_model
from evals.checks import MAX_LOGPROB_NATS
from evals.fuzz.arms import FUZZ_ARMS, MODELS, FuzzArm, reference
from evals.fuzz.bench import check, judge_all, settle
from evals.fuzz.generate import generate, without_penalties
from evals.fuzz.play import connect, play
from evals.fuzz.reference import Reference
from evals.fuzz.results import versions
from evals.fuzz.said import Compared
from evals.fuzz.streams import Stream
from evals.given import require_parent
from evals.server import Server, ServerError, ServerSpec, end_on_sigterm, log_folder, running
from evals.soak_memory import Sample, growth, sampling
from sglang_cp.errors import UsageError

CONCURRENCY = 8
MAX_GROWTH = 0.02
_BY_NAME = {arm.name: arm for arm in FUZZ_ARMS}


@dataclass
class Soak:
    """What came of it: counts, what was wrong, and memory over time.

    Attributes:
        problems: each one sentence.
        pauses: how often the server was seen to hold nothing.
        grown: by which share memory grew past the warm-up.
    """

    minutes: float
    streams: int = 0
    requests: int = 0
    aborted: int = 0
    pauses: int = 0
    compared: Compared = field(default_factory=Compared)
    counters: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    grown: float = 0.0

    def count(self, stream: Stream) -> None:
        """Count a stream that was played."""
        self.streams += 1
        self.requests += len(stream.requests)
        self.aborted += sum(request.abort is not None for request in stream.requests)


def watched(arm: FuzzArm, model: Path) -> ServerSpec:
    """How to launch the server whose memory is watched: as by default, it gives freed memory back and spawns its ranks.

    Forked ones share pages with the leading process until it writes to them: memory would seem to grow by 7 %.
    """
    spec = arm.spec(model)
    kept = {name: value for name, value in spec.env.items() if name not in KEEPS_FREED_MEMORY}
    return replace(spec, env=kept | SPAWNED)


def soak(
    server: Server,
    oracle: Reference,
    streams: Callable[[int], Stream],
    *,
    minutes: float,
    first: Mapping[str, Stream] | None = None,
    warm_up: float = 1 / 6,
    pause_s: float = 60.0,
    interval_s: float = 10.0,
    on: Callable[[Soak], None] = lambda soak: None,
) -> Soak:
    """Keep a server busy, compare, and watch its memory.

    Args:
        server: the CP server; its pid is known.
        oracle: of the reference, which keeps its answers.
        streams: from 0, 1, 2, ... to what is played.
        first: by name, streams that are played before the time begins, each alone.
        warm_up: share of the time in which memory may grow.
        pause_s: seconds of traffic between two pauses.
        interval_s: seconds between two samples of memory.
        on: called after each stream.
    """
    if server.pid is None:
        raise ValueError(f"{server.name} was not started here: its memory cannot be seen")
    result = Soak(minutes)
    numbers = itertools.count()
    samples: list[Sample] = []
    try:
        before = server.cp_counters()
        for name, stream in (first or {}).items():
            verdict = check(server, oracle.prepare(stream))
            result.problems += [f"{name}, {sentence}." for sentence in verdict.found]
            result.compared.add(verdict.compared)
            result.count(stream)
        ends = time.monotonic() + 60 * minutes
        with sampling(server.pid, interval_s) as samples:
            while time.monotonic() < ends and not result.problems:
                until = min(ends, time.monotonic() + pause_s)
                asyncio.run(_traffic(server.url, oracle, streams, numbers, until, result, on))
                settle(server)
                result.pauses += 1
        after = server.cp_counters()
        result.counters = {name: after[name] - before[name] for name in after}
        if not result.counters["cp_extends"]:
            result.problems.append("No extend was dealt out: CP did not take part.")
    except ServerError as error:
        result.problems.append(f"{error}")
    result.samples = samples
    if result.problems:
        return result
    try:
        result.grown = growth(samples, warm_up * 60 * minutes)
    except ValueError as error:
        result.problems.append(f"Memory: {error}.")
    if not result.grown <= MAX_GROWTH:
        result.problems.append(f"Memory grew by {result.grown:.1%} past the warm-up, more than {MAX_GROWTH:.0%}.")
    return result


async def _traffic(
    url: str,
    oracle: Reference,
    streams: Callable[[int], Stream],
    numbers: Iterator[int],
    until: float,
    result: Soak,
    on: Callable[[Soak], None],
) -> None:
    """Play streams until a time, as many at once as keeps the requests that may run at work."""
    limit = asyncio.Semaphore(CONCURRENCY)

    async def player() -> None:
        while time.monotonic() < until and not result.problems:
            number = next(numbers)
            prepared = await asyncio.to_thread(oracle.prepare, without_penalties(streams(number)))
            outcomes = await play(client, prepared.stream, prepared.prompts, limit)
            found = judge_all(prepared, outcomes, MAX_LOGPROB_NATS, result.compared)
            result.problems += [f"Stream {number}, {sentence}." for sentence in found]
            result.count(prepared.stream)
            on(result)

    async with connect(url) as client:
        await asyncio.gather(*(player() for _ in range(CONCURRENCY)))


def table(result: Soak, rows: int = 12) -> str:
    """Memory over time and the counts, in Markdown."""
    step = max(1, len(result.samples) // rows)
    lines = ["| minute | processes | RSS, MiB | own memory, MiB |", "|---:|---:|---:|---:|"]
    for sample in result.samples[step - 1 :: step]:
        sizes = f"{sample.rss / 2**20:,.1f} | {sample.own / 2**20:,.1f}"
        lines.append(f"| {sample.seconds / 60:.1f} | {sample.processes} | {sizes} |")
    compared = result.compared
    return "\n".join(
        [
            *lines,
            "",
            f"{result.minutes:g} minutes: {result.streams:,} streams, {result.requests:,} requests ({result.aborted:,} "
            f"called off), {compared.tokens:,} tokens and {compared.logprobs:,} logprobs compared (largest difference "
            f"{compared.max_gap:.1e} nats), {result.counters.get('cp_extends', 0):,} CP extends of "
            f"{result.counters.get('cp_rows', 0):,} rows, {result.pauses} pauses with nothing held; memory grew by "
            f"{result.grown:+.2%} past the warm-up.",
        ]
    )


def main(
    minutes: Annotated[float, typer.Option(help="Of traffic.")] = 60.0,
    warm_up: Annotated[float, typer.Option(help="Share of the time in which memory may grow.")] = 1 / 6,
    seed: Annotated[int, typer.Option(help="Of the streams.")] = 1000,
    pool: Annotated[int, typer.Option(help="Different streams; they are played over and over.")] = 400,
    arm: Annotated[str, typer.Option(help=f"The server, of {', '.join(_BY_NAME)}.")] = "tp2-sharded-96",
    interval: Annotated[
        float | None, typer.Option(help="Seconds between samples of memory; by default 10, fewer in a short run.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write all figures as JSON.")] = None,
    log_dir: Annotated[Path | None, typer.Option(help="Where server logs go; by default a temporary folder.")] = None,
) -> None:
    """Keep one CP server busy, compare every answer with plain SGLang, and watch memory."""
    end_on_sigterm()
    console = Console()
    with one_sentence(Console(stderr=True)):
        if not 0 < minutes < math.inf:
            raise UsageError(f"--minutes {minutes} is no time: give a number above 0.")
        if not 0 <= warm_up < 1:
            raise UsageError(f"--warm-up {warm_up} is not a share of the time: give a number from 0 to under 1.")
        if pool < 1:
            raise UsageError(f"--pool {pool} is too small: give at least 1.")
        longest_s = 6 * minutes
        if interval is None:
            interval = min(10.0, longest_s)
        if not 0 < interval <= longest_s:
            raise UsageError(
                f"--interval {interval} cannot be used: give more than 0 and at most {longest_s:g}, "
                "a tenth of the time."
            )
        if arm not in _BY_NAME:
            raise UsageError(f"--arm {arm} is not known: use one of {', '.join(_BY_NAME)}.")
        require_parent("--output", output)
    with one_sentence(console), log_folder(log_dir, "soak") as folder, _shown(console, minutes) as on:
        model = tiny_model(folder, MODELS["glm"])
        with running(reference(model), folder) as plain, running(watched(_BY_NAME[arm], model), folder) as server:
            result = soak(
                server,
                Reference(plain.url),
                lambda number: _BY_NAME[arm].played(generate(seed, number % pool)),
                minutes=minutes,
                warm_up=warm_up,
                interval_s=interval,
                on=on,
            )
    print(table(result))
    _say(result.problems, console)
    if output:
        about = {"arm": arm, "seed": seed, "pool": pool, "warm_up": warm_up, "versions": versions()}
        output.write_text(json.dumps({**about, **asdict(result)}, indent=1))
    raise typer.Exit(1 if result.problems else 0)


def _say(problems: Sequence[str], console: Console) -> None:
    for problem in problems:
        console.print(problem, style="red", markup=False, soft_wrap=True)


@contextlib.contextmanager
def _shown(console: Console, minutes: float) -> Iterator[Callable[[Soak], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=60 * minutes)
        started: list[float] = []

        def on(result: Soak) -> None:
            if not started:
                started.append(time.monotonic())
            progress.update(task, description=f"{result.streams} streams", completed=time.monotonic() - started[0])

        yield on


if __name__ == "__main__":
    typer.run(main)
