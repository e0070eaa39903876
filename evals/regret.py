"""What the cost model's choice between CP and TP costs: the time of the chosen mode over the better of both.

Goal: at most 1.03 for 95 % of the extends, never over 1.10.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError
from rich.console import Console
from rich.table import Table

from sglang_cp.cost.calibration import Seconds, Tokens, read_calibration
from sglang_cp.cost.choice import choose
from sglang_cp.cost.files import write_whole
from sglang_cp.cost.fit import Fit, fit
from sglang_cp.cost.model import CostModel
from sglang_cp.cost.shape import ExtendShape
from sglang_cp.cost.terms import Mode
from sglang_cp.errors import UsageError

LENGTHS = tuple(2**power for power in range(6, 17))
BATCHES = (1, 2, 4, 8, 16)
PREFIXES = (0, 1024, 4096, 16384, 65536)
CHUNKS = (8192, 32768)
"""The full grid: new tokens of a request, requests, cached tokens of each, and tokens that one extend may have."""

USUAL_GOAL, USUAL_SHARE, WORST_GOAL = 1.03, 0.95, 1.10


@dataclass(frozen=True)
class Timed:
    """An extend timed in both modes, in seconds."""

    shape: ExtendShape
    tp_seconds: float
    cp_seconds: float


@dataclass(frozen=True)
class Regret:
    """What was chosen for an extend, and its time over the better mode's."""

    timed: Timed
    chosen: Mode
    ratio: float


@dataclass(frozen=True)
class Summary:
    """All extends: how many, the share within the usual goal, the ratio's 95th percentile and maximum."""

    extends: int
    share_within: float
    percentile_95: float
    worst: float
    chosen_cp: int

    @property
    def reached(self) -> bool:
        return self.share_within >= USUAL_SHARE and self.worst <= WORST_GOAL


def grid(
    lengths: Iterable[int] = LENGTHS,
    batches: Iterable[int] = BATCHES,
    prefixes: Iterable[int] = PREFIXES,
    chunks: Iterable[int] = CHUNKS,
) -> list[ExtendShape]:
    """The first extend that a scheduler makes of equal requests: as many as the chunk holds, the last one cut."""
    shapes = []
    for length, batch, prefix, chunk in product(lengths, batches, prefixes, chunks):
        room = [min(length, chunk - length * index) for index in range(batch)]
        extend_lens = [tokens for tokens in room if tokens > 0]
        shapes.append(ExtendShape.of(extend_lens, [prefix] * len(extend_lens)))
    return list(dict.fromkeys(shapes))


def measure(shapes: Iterable[ExtendShape], seconds: Callable[[ExtendShape, Mode], float]) -> list[Timed]:
    """Time each extend in both modes with ``seconds``."""
    return [Timed(shape, seconds(shape, Mode.TP), seconds(shape, Mode.CP)) for shape in shapes]


def regret(model: CostModel, timed: Timed) -> Regret:
    """The model's choice for one extend, judged by its times."""
    chosen = choose(model, timed.shape.extend_lens, timed.shape.prefix_lens).mode
    seconds = timed.cp_seconds if chosen is Mode.CP else timed.tp_seconds
    return Regret(timed, chosen, seconds / min(timed.tp_seconds, timed.cp_seconds))


def held_out(fitted: Fit) -> list[Regret]:
    """Each extend of a calibration that was timed in both modes, judged by a model fitted to all the other extends.

    Raises:
        UsageError: the others are too few to fit.
    """
    results = []
    for timed in _timed_in_both_modes(fitted):
        others = [m for m in fitted.measurements if m.shape != timed.shape]
        model = fitted.model
        refitted = fit(others, model.geometry, terms=tuple(model.coefficients), pull_seconds=model.pull_seconds)
        results.append(regret(refitted.model, timed))
    return results


def _timed_in_both_modes(fitted: Fit) -> list[Timed]:
    shapes = list(dict.fromkeys(m.shape for m in fitted.measurements))
    times = {
        (shape, mode): [m.seconds for m in fitted.measurements if (m.shape, m.mode) == (shape, mode)]
        for shape in shapes
        for mode in Mode
    }
    both = [shape for shape in shapes if all(times[shape, mode] for mode in Mode)]
    return [Timed(shape, median(times[shape, Mode.TP]), median(times[shape, Mode.CP])) for shape in both]


def summarize(regrets: Sequence[Regret]) -> Summary:
    """``regrets``: at least one."""
    ratios = sorted(regret.ratio for regret in regrets)
    return Summary(
        extends=len(ratios),
        share_within=sum(ratio <= USUAL_GOAL for ratio in ratios) / len(ratios),
        percentile_95=ratios[-(-95 * len(ratios) // 100) - 1],
        worst=ratios[-1],
        chosen_cp=sum(regret.chosen is Mode.CP for regret in regrets),
    )


class _TimedRecord(BaseModel):
    """One line of a file of times."""

    model_config = ConfigDict(extra="forbid", strict=True)
    extend_lens: Annotated[list[Tokens], Field(min_length=1)]
    prefix_lens: list[Tokens]
    tp_seconds: Seconds
    cp_seconds: Seconds


class _Times(RootModel[list[_TimedRecord]]):
    root: Annotated[list[_TimedRecord], Field(min_length=1)]


def read_times(path: Path) -> list[Timed]:
    """Read a JSON list of {extend_lens, prefix_lens, tp_seconds, cp_seconds}. Raises UsageError."""
    try:
        records = _Times.model_validate_json(path.read_bytes()).root
        return [Timed(ExtendShape.of(r.extend_lens, r.prefix_lens), r.tp_seconds, r.cp_seconds) for r in records]
    except OSError as error:
        raise UsageError(f"--times {path} cannot be read ({error.strerror}): measure the grid again.") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise UsageError(f"--times {path} cannot be used ({place}: {first['msg']}): measure the grid again.") from error
    except ValueError as error:
        raise UsageError(f"--times {path} cannot be used ({error}): measure the grid again.") from error


def main(
    calibration: Annotated[Path, typer.Option(help="File of `sglang-cp calibrate`.")],
    times: Annotated[
        Path | None, typer.Option(help="Extends timed in both modes; without, the calibration's own, held out in turn.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write every extend's choice and ratio as JSON.")] = None,
) -> None:
    """Judge the cost model's choices; exit code 1 if the goal is missed, 2 for unusable input."""
    try:
        if output is not None and not output.parent.is_dir():
            raise UsageError(f"--output {output} cannot be written: {output.parent} is not a directory.")
        fitted = read_calibration(calibration).to_fit()
        regrets = held_out(fitted) if times is None else [regret(fitted.model, timed) for timed in read_times(times)]
        if not regrets:
            raise UsageError(f"No extend of {calibration} was timed in both modes: measure again.")
    except UsageError as error:
        Console(stderr=True).print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(error.exit_code) from error
    summary = summarize(regrets)
    console = Console()
    console.print(_worst(regrets))
    console.print(
        f"{summary.extends} extends, {summary.chosen_cp} as CP. Chosen over better mode: at most {USUAL_GOAL} for "
        f"{summary.share_within:.0%} (goal {USUAL_SHARE:.0%}), {summary.percentile_95:.3f} at the 95th percentile, "
        f"{summary.worst:.3f} at most (goal {WORST_GOAL:.2f})."
    )
    if output is not None:
        write_whole(output, json.dumps([asdict(item) for item in regrets], indent=1).encode())
    if not summary.reached:
        raise typer.Exit(1)


def _worst(regrets: Sequence[Regret], count: int = 10) -> Table:
    table = Table(title="The costliest choices", title_justify="left")
    for column in ("requests", "new tokens", "longest", "TP (ms)", "CP (ms)", "chosen", "ratio"):
        table.add_column(column, justify="right")
    for item in sorted(regrets, key=lambda item: -item.ratio)[:count]:
        shape = item.timed.shape
        table.add_row(
            str(len(shape.extend_lens)),
            f"{shape.rows:,}",
            f"{shape.longest:,}",
            f"{item.timed.tp_seconds * 1e3:.2f}",
            f"{item.timed.cp_seconds * 1e3:.2f}",
            str(item.chosen),
            f"{item.ratio:.3f}",
        )
    return table


if __name__ == "__main__":
    typer.run(main)
