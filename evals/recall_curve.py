"""The learning curve of a training run, as a table and as a picture."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import astuple, fields, replace
from pathlib import Path
from statistics import fmean

from evals.recall_training import Point

WINDOW = 20
"""Steps of which a point of the curve is the mean."""


def averaged(points: Sequence[Point]) -> Iterator[Point]:
    """Means over windows of steps; a window never spans two stages or lengths."""
    for _, group in itertools.groupby(points, key=lambda point: (point.stage, point.length)):
        run = list(group)
        for start in range(0, len(run), WINDOW):
            window = run[start : start + WINDOW]
            yield replace(
                window[-1],
                loss=fmean(point.loss for point in window),
                guidance=_mean([point.guidance for point in window]),
                recall=_mean([point.recall for point in window]),
            )


def _mean(figures: Sequence[float | None]) -> float | None:
    given = [figure for figure in figures if figure is not None]
    return fmean(given) if given else None


def write(points: Sequence[Point], path: Path) -> None:
    """Write the averaged points as CSV, a column a field of `Point`; four digits."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(field.name for field in fields(Point))
        for point in averaged(points):
            table.writerow(f"{figure:.4g}" if isinstance(figure, float) else figure for figure in astuple(point))


def draw(points: Sequence[Point], path: Path) -> None:
    """Write a PNG: recall and losses of the attention stage, and the indexers' divergence; lengths are marked."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    stages = {stage: list(group) for stage, group in itertools.groupby(averaged(points), key=lambda p: p.stage)}
    attention, indexer = stages["attention"], stages["indexer"]
    recall_axis = left.twinx()
    for axis, name, colour, label in (
        (left, "loss", "tab:blue", "answers"),
        (left, "guidance", "tab:gray", "guidance"),
        (recall_axis, "recall", "tab:green", "answer tokens right"),
    ):
        axis.plot([p.step for p in attention], [getattr(p, name) for p in attention], color=colour, label=label)
    recall_axis.set_ylim(0, 1.02)
    recall_axis.set_ylabel("answer tokens right, share (top-k off)", color="tab:green")
    left.set_ylabel("loss, nats")
    left.set_title("1. attention", pad=16)
    left.legend(loc="lower left")
    right.plot([p.step for p in indexer], [p.loss for p in indexer])
    right.set_ylabel("divergence from attention, nats")
    right.set_title("2. indexers", pad=16)
    for axis, stage in ((left, attention), (right, indexer)):
        axis.set_yscale("log")
        axis.set_xlabel("step")
        for length, run in itertools.groupby(stage, key=lambda point: point.length):
            start = next(run).step
            axis.axvline(start, color="lightgray", linewidth=0.8, zorder=0)
            axis.text(start, 1.01, f"{length:,}", fontsize=7, transform=axis.get_xaxis_transform())
    figure.savefig(path, dpi=120)
