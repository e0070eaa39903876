"""The run: each arm's server in turn, its points one by one, every result written at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from evals.server import ServerError, running
from evals.throughput_arms import Launch, ThroughputArm
from evals.throughput_bench import BenchError, measure
from evals.throughput_results import Point, ResultsFile


@dataclass(frozen=True)
class Load:
    """What is asked of each arm.

    Attributes:
        lengths: prompt lengths in tokens.
        concurrency: requests at a time.
        output_tokens: of each answer.
        rounds: requests of a point over its concurrency.
        least_prompts: requests of a point at least.
        min_tokens: ``--cp-min-tokens`` of the arm with a fixed threshold; None for the server's default.
    """

    lengths: Sequence[int]
    concurrency: Sequence[int]
    output_tokens: int
    rounds: int
    least_prompts: int
    min_tokens: int | None = None

    def points(self, arm: ThroughputArm, seed: int) -> list[Point]:
        """All points of one arm."""
        return [
            Point(
                arm=arm.name,
                input_tokens=length,
                output_tokens=self.output_tokens,
                concurrency=concurrency,
                prompts=max(self.rounds * concurrency, self.least_prompts),
                seed=seed,
            )
            for length in self.lengths
            for concurrency in self.concurrency
        ]


FULL = Load((1024, 4096, 16384, 40960, 61440), (1, 4, 8, 16), 512, rounds=4, least_prompts=8)
SMOKE = Load((1024, 16384), (1, 4), 64, rounds=2, least_prompts=4)
ON_CPU = Load((64, 320), (1, 2), 8, rounds=1, least_prompts=2, min_tokens=128)
"""Tiny, with a length on each side of the threshold."""


def run(
    launch: Launch, points: Mapping[ThroughputArm, Sequence[Point]], file: ResultsFile, logs: Path, console: Console
) -> list[str]:
    """Measure what is not in ``file``: a sentence for each point or arm that failed; the others are measured still.

    A server that does not answer any more ends its arm: the next point's flush of the cache fails.
    """
    failures: list[str] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        total = sum(map(len, points.values()))
        task = progress.add_task("points", total=total)
        for arm, of_arm in points.items():
            missing = file.missing(of_arm)
            progress.advance(task, len(of_arm) - len(missing))
            if not missing:
                continue
            progress.update(task, description=f"starting {arm.name}")
            try:
                with running(launch.spec(arm), logs) as server:
                    if problem := arm.problem(server.info()):
                        raise ServerError(problem)
                    for point in missing:
                        progress.update(task, description=f"{point.name}: {point.prompts} requests")
                        try:
                            file.append(measure(launch, arm, point, server, logs))
                        except BenchError as error:
                            failures.append(f"{point.name}: {error}")
                        progress.advance(task)
            except ServerError as error:
                failures.append(f"{arm.name}: {error}")
        progress.update(task, description="points", completed=total)
    return failures
