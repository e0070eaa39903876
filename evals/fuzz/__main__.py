"""Differential fuzzing of CP against plain SGLang: ``python -m evals.fuzz --minutes 30 --seed 0``.

Streams of requests (see :mod:`evals.fuzz.generate`) are played against CP servers with their true concurrency, and
every token and logprob is compared with plain SGLang's at tp 1, on the CPU reference platform in its exact mode. A
stream that differs is made small and kept as a file for ``--replay``. With ``--output`` a run goes on where it was
stopped.

``--replay FILES`` and ``--report FOLDERS`` take any number; ``--first-stream`` and ``--streams`` let several processes
share one seed. Exit code 1 if anything differs or CP took no part, 2 for unusable input.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from evals.accuracy import one_sentence
from evals.arms import tiny_model
from evals.checks import MAX_LOGPROB_NATS
from evals.fuzz.arms import FUZZ_ARMS, MODELS, FuzzArm, reference
from evals.fuzz.bench import Bench, Verdict
from evals.fuzz.reference import Reference
from evals.fuzz.report import report as report_of
from evals.fuzz.results import Folder, Replay, Settings, read_played, unproved, versions
from evals.fuzz.run import Fuzzer, schedule
from evals.server import end_on_sigterm, log_folder, running
from sglang_cp.errors import UsageError

NAMES = ", ".join(arm.name for arm in FUZZ_ARMS)


def main(
    minutes: Annotated[float | None, typer.Option(help="Start no stream after so many; by default no limit.")] = None,
    seed: Annotated[int, typer.Option(help="Of the streams: stream k of a seed is the same for ever.")] = 0,
    first_stream: Annotated[int, typer.Option(help="Index of the first stream.")] = 0,
    streams: Annotated[int | None, typer.Option(help="How many streams; by default no limit.")] = None,
    arm: Annotated[list[str] | None, typer.Option(help=f"Arms, of {NAMES}; by default all.")] = None,
    block: Annotated[int, typer.Option(help="Streams between two starts of a server.")] = 50,
    arms_per_stream: Annotated[int, typer.Option(help="Arms that each stream is played against.")] = 1,
    model: Annotated[str, typer.Option(help=f"{', '.join(MODELS)}, or a checkpoint's directory.")] = "glm",
    tolerance: Annotated[float, typer.Option(help="Largest logprob difference, nats.")] = MAX_LOGPROB_NATS,
    max_failures: Annotated[int, typer.Option(help="Stop after so many.")] = 5,
    output: Annotated[Path | None, typer.Option(help="Folder for results; by default a temporary one.")] = None,
    replay: Annotated[bool, typer.Option("--replay", help="Play the files PATHS and nothing else.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Print the figures of the folders PATHS and end.")] = False,
    paths: Annotated[list[Path] | None, typer.Argument(help="For --replay and --report.")] = None,
) -> None:
    """Compare CP with plain SGLang on generated streams of requests."""
    end_on_sigterm()
    console = Console()
    with one_sentence(Console(stderr=True)):
        if replay + report != bool(paths):
            raise UsageError("Give files after --replay, or folders after --report, and paths with nothing else.")
        if report:
            print(report_of(paths or []))
            return
        if minutes is not None and not 0 < minutes < math.inf:
            raise UsageError(f"--minutes {minutes} is no time: give a number above 0.")
        least = {"--streams": (streams, 1), "--first-stream": (first_stream, 0),
                 "--block": (block, 1), "--max-failures": (max_failures, 1), "--tolerance": (tolerance, 0)}  # fmt: skip
        for name, (value, at_least) in least.items():
            if value is not None and not value >= at_least:
                raise UsageError(f"{name} {value} cannot be used: give at least {at_least}.")
        if minutes is None and streams is None and not replay:
            raise UsageError("Without an end a run goes on for ever: give --minutes or --streams.")
        arms = _arms(arm)
        if not 1 <= arms_per_stream <= len(arms):
            raise UsageError(f"--arms-per-stream {arms_per_stream} must be between 1 and the {len(arms)} arms.")
        if model not in MODELS and not (Path(model) / "config.json").is_file():
            raise UsageError(f"--model {model} is neither one of {', '.join(MODELS)} nor a checkpoint's directory.")
        if output is not None and output.exists() and not output.is_dir():
            raise UsageError(f"--output {output} is not a directory.")
        replays = _replays(paths or [])
        with log_folder(output, "fuzz") as path:
            folder = Folder(path, Settings(seed=seed, model=model, tolerance=tolerance, versions=versions()))
            checkpoint = tiny_model(path, MODELS[model]) if model in MODELS else Path(model)

            def bench(of: FuzzArm) -> Bench:
                return Bench(of, checkpoint, folder.logs, tolerance)

            console.print(f"Starting plain SGLang on {checkpoint.name}")
            with running(reference(checkpoint), folder.logs) as server:
                oracle = Reference(server.url)
                if replays:
                    agrees = _replay(replays, oracle, bench, console)
                else:
                    ends = time.monotonic() + 60 * minutes if minutes is not None else math.inf
                    with _shown(console, streams and streams * arms_per_stream, len(folder.done)) as on:
                        fuzzer = Fuzzer(seed, oracle, folder, bench, on)
                        items = schedule(first_stream, streams, block, arms, arms_per_stream)
                        failures = fuzzer.run(items, lambda: time.monotonic() > ends, max_failures)
                    agrees = _finish(failures, folder, console)
    raise typer.Exit(0 if agrees else 1)


def _finish(failures: Sequence[Replay], folder: Folder, console: Console) -> bool:
    """Say what came of a run: whether all of it, what was played before it included, agrees."""
    played = read_played(folder.path)
    print(report_of([folder.path]))
    for failure in failures:
        console.print(f"{failure.arm}, stream {failure.index}:", *failure.found, style="red", markup=False)
        console.print(failure.stream.model_dump_json(exclude_defaults=True), markup=False, soft_wrap=True)
    return not any(line.failed for line in played) and not unproved(played)


def _replay(replays: Sequence[Replay], oracle: Reference, bench: Callable[[FuzzArm], Bench], console: Console) -> bool:
    """Play each against its arm, and say what is wrong."""
    agrees = True
    for arm in FUZZ_ARMS:
        of_arm = [replay for replay in replays if replay.arm == arm.name]
        if not of_arm:
            continue
        with bench(arm) as playing:
            for replay in of_arm:
                found = playing.check(oracle.prepare(replay.stream)).found
                agrees = agrees and not found
                console.print(f"{arm.name}: {replay.why}", " ".join(found) or "It agrees.", markup=False)
    return agrees


def _replays(paths: Sequence[Path]) -> list[Replay]:
    replays = [Replay.read(path) for path in paths]
    for path, replay in zip(paths, replays, strict=True):
        if replay.arm not in {arm.name for arm in FUZZ_ARMS}:
            raise UsageError(f"{path} is about an arm {replay.arm}, which is not known: use one of {NAMES}.")
    return replays


def _arms(names: list[str] | None) -> list[FuzzArm]:
    by_name = {arm.name: arm for arm in FUZZ_ARMS}
    for name in names or []:
        if name not in by_name:
            raise UsageError(f"--arm {name} is not known: use one of {NAMES}.")
    return [by_name[name] for name in names] if names else list(FUZZ_ARMS)


@contextlib.contextmanager
def _shown(console: Console, total: int | None, done: int) -> Iterator[_On]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield _On(progress, total, done)


class _On:
    """Shows where a run is."""

    def __init__(self, progress: Progress, total: int | None, done: int) -> None:
        self._progress = progress
        self._failed = 0
        self._task = progress.add_task("starting", total=total, completed=done)

    def __call__(self, arm: str, index: int, verdict: Verdict | None) -> None:
        if verdict is not None:
            self._failed += bool(verdict.found)
            self._progress.advance(self._task)
        self._progress.update(self._task, description=f"{arm}: stream {index}, {self._failed} failures")


if __name__ == "__main__":
    typer.run(main)
