"""What the cost model's choice between CP and TP costs: the time of the chosen mode over the better of both.

``python -m evals.regret --url http://HOST:30000`` times a grid of extends in both modes on a running, idle server, and
judges what the calibration that it serves with chooses. Goal on a GPU: at most 1.03 for 95 % of the extends, never over
1.10. Without --url a tiny model is served on CPU ranks. With --calibration nothing is measured: times are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from evals.regret_grid import grid, small_grid
from evals.regret_measure import Measured, measure, tiny_server
from evals.regret_times import Timed, read_times, write_times
from evals.server import ServerError, end_on_sigterm
from sglang_cp.calibration.client import MeasuringClient, connected
from sglang_cp.calibration.report import residuals_text
from sglang_cp.calibration.requests import MOST_ROUNDS
from sglang_cp.cost.calibration import read_calibration
from sglang_cp.cost.choice import choose
from sglang_cp.cost.files import check_place
from sglang_cp.cost.fit import Fit, fit
from sglang_cp.cost.model import CostModel
from sglang_cp.cost.terms import Mode
from sglang_cp.errors import SglangCpError, UsageError
from sglang_cp.startup import SUPPORTED_TP_SIZES

USUAL_GOAL, USUAL_SHARE, WORST_GOAL = 1.03, 0.95, 1.10


@dataclass(frozen=True)
class Regret:
    """What was chosen for an extend, and its time over the better mode's."""

    timed: Timed
    chosen: Mode
    ratio: float

    @property
    def within_noise(self) -> bool:
        """Whether the ratio is no further from 1 than its own noise."""
        return self.timed.noise is not None and self.ratio <= 1 + self.timed.noise


@dataclass(frozen=True)
class Summary:
    """All extends: how many, the share within the usual goal, the ratio's 95th percentile and maximum.

    ``over``: extends over the usual goal; ``over_within_noise``: those of them that noise may have put there.
    """

    extends: int
    share_within: float
    percentile_95: float
    worst: float
    chosen_cp: int
    over: int
    over_within_noise: int

    @property
    def reached(self) -> bool:
        return self.share_within >= USUAL_SHARE and self.worst <= WORST_GOAL


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
    over = [regret for regret in regrets if regret.ratio > USUAL_GOAL]
    return Summary(
        extends=len(ratios),
        share_within=1 - len(over) / len(ratios),
        percentile_95=ratios[-(-95 * len(ratios) // 100) - 1],
        worst=ratios[-1],
        chosen_cp=sum(regret.chosen is Mode.CP for regret in regrets),
        over=len(over),
        over_within_noise=sum(regret.within_noise for regret in over),
    )


def main(
    url: Annotated[
        str | None, typer.Option(help="Of an idle server; without, a tiny one is started on CPU ranks.")
    ] = None,
    api_key: Annotated[str | None, typer.Option(help="The server's --admin-api-key or --api-key.")] = None,
    small: Annotated[bool, typer.Option("--small", help="A grid for a tiny model; implied without --url.")] = False,
    rounds: Annotated[int, typer.Option(help="Runs of each extend in each mode, after a warm-up.")] = 5,
    tp: Annotated[int | None, typer.Option(help="CPU ranks of the server that is started here, default 2.")] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="File of `sglang-cp calibrate`: judge it without a server.")
    ] = None,
    times: Annotated[
        Path | None, typer.Option(help="With --calibration: timed extends; without, its own, held out in turn.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write the times as JSON, for --times.")] = None,
) -> None:
    """Judge the cost model's choices; exit code 1 if the goal is missed, 2 for unusable input."""
    end_on_sigterm()
    console = Console(highlight=False)
    try:
        _check(url, tp, rounds, calibration, times, output)
        if calibration is None:
            with connected(url, api_key) if url else tiny_server(tp or 2) as client:
                measured = _measured(client, small=small or url is None, rounds=rounds)
            model = measured.calibration.to_fit().model
            regrets = [regret(model, timed) for timed in measured.timed]
        else:
            measured, regrets = None, _from_files(calibration, times)
        if output is not None:
            write_times(output, [item.timed for item in regrets])
    except (SglangCpError, ServerError) as error:
        Console(stderr=True).print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(error.exit_code if isinstance(error, SglangCpError) else 1) from error
    summary = summarize(regrets)
    console.print(_table(regrets))
    judged = measured is None or not measured.on_cpu
    lines = [*_about(measured), *_verdict(summary, regrets)]
    if not judged:
        lines.append("The goal is for GPUs; CPU ranks are a reference that nobody serves on, so this is no verdict.")
    for line in lines:
        console.print(line, soft_wrap=True)
    if judged and not summary.reached:
        raise typer.Exit(1)


def _check(
    url: str | None, tp: int | None, rounds: int, calibration: Path | None, times: Path | None, output: Path | None
) -> None:
    """Raise UsageError for options that do not go together, before anything is started."""
    if url == "":
        raise UsageError("--url is empty: give http://HOST:PORT, or leave it out to start a tiny server here.")
    if times is not None and calibration is None:
        raise UsageError("--times are judged with a calibration: give it with --calibration.")
    if url is not None and calibration is not None:
        raise UsageError("--calibration is judged without a server: leave one of --url and --calibration out.")
    if not 1 <= rounds <= MOST_ROUNDS:
        raise UsageError(f"--rounds is {rounds}: give a number from 1 to {MOST_ROUNDS}.")
    if tp is not None and (url is not None or calibration is not None):
        raise UsageError("--tp is of a server that is started here: leave it out.")
    if tp is not None and tp not in SUPPORTED_TP_SIZES:
        raise UsageError(f"--tp is {tp}: use one of {', '.join(map(str, SUPPORTED_TP_SIZES))}.")
    if output is not None:
        check_place(output)
        if any(
            given is not None and given.exists() and output.exists() and output.samefile(given)
            for given in (calibration, times)
        ):
            raise UsageError(f"--output {output} would replace what is read: name another file.")


def _from_files(calibration: Path, times: Path | None) -> list[Regret]:
    fitted = read_calibration(calibration).to_fit()
    if times is None:
        regrets = held_out(fitted)
        if not regrets:
            raise UsageError(f"No extend of {calibration} was timed in both modes: measure again.")
        return regrets
    known = {measurement.shape for measurement in fitted.measurements}
    unknown = [timed for timed in read_times(times) if timed.shape not in known]
    if not unknown:
        raise UsageError(f"--times {times} has only extends that {calibration} was fitted to: time others.")
    return [regret(fitted.model, timed) for timed in unknown]


def _measured(client: MeasuringClient, *, small: bool, rounds: int) -> Measured:
    shapes = small_grid() if small else grid()
    columns = (TextColumn("Timing extends"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, transient=True, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(shapes))
        return measure(client, shapes, rounds, lambda done: progress.update(task, completed=done))


def _about(measured: Measured | None) -> Iterator[str]:
    if measured is None:
        return
    calibration = measured.calibration
    yield f"Judged is the server's own calibration: {residuals_text(calibration)}, tp {calibration.key.tp}."
    yield (
        f"Of the grid {measured.too_large} extends are left out because the server cannot hold them, "
        f"{measured.fitted} because the calibration was fitted to them."
    )


def _verdict(summary: Summary, regrets: Sequence[Regret]) -> Iterator[str]:
    yield (
        f"{summary.extends} extends, {summary.chosen_cp} as CP. Chosen over better mode: at most {USUAL_GOAL} for "
        f"{summary.share_within:.0%} (goal {USUAL_SHARE:.0%}), {summary.percentile_95:.3f} at the 95th percentile, "
        f"{summary.worst:.3f} at most (goal {WORST_GOAL:.2f})."
    )
    noises = [item.timed.noise for item in regrets if item.timed.noise is not None]
    if noises:
        yield (
            f"A ratio's noise (half the range of its rounds, both modes together) is {median(noises):.1%} in the "
            f"median, {max(noises):.1%} at most; {summary.over_within_noise} of the {summary.over} extends over "
            f"{USUAL_GOAL} are within their own."
        )


def _table(regrets: Sequence[Regret]) -> Table:
    """Every extend, the costliest choice first."""
    table = Table(title="Time of the chosen mode over the better one", title_justify="left", box=SIMPLE_HEAD)
    for column in ("requests", "new tokens", "cached of each", "TP, ms", "CP, ms", "chosen", "ratio", "noise"):
        table.add_column(column, justify="right")
    for item in sorted(regrets, key=lambda item: -item.ratio):
        timed = item.timed
        table.add_row(
            str(len(timed.shape.extend_lens)),
            f"{timed.shape.rows:,}",
            f"{max(timed.shape.prefix_lens):,}",
            f"{timed.tp_seconds * 1e3:.2f}",
            f"{timed.cp_seconds * 1e3:.2f}",
            str(item.chosen),
            f"{item.ratio:.3f}",
            "" if timed.noise is None else f"{timed.noise:.1%}",
        )
    return table


if __name__ == "__main__":
    typer.run(main)
