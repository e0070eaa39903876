"""Two pictures of a throughput run, after the figures 2 and 3 of "Serving GLM-5.2-MXFP4 on AMD Instinct MI355X: When
Prefill Context Parallelism Pays" (ROCm blogs): what each arm is worth by prompt length, and the frontier of throughput
against interactivity."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from evals.throughput_arms import ARMS, OFF, UNPATCHED_OFF
from evals.throughput_goals import Figures
from evals.throughput_results import Measurement, Setup
from sglang_cp.cost.files import write_whole
from sglang_cp.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = dict(zip(ARMS, ("black", "tab:red", "tab:gray", "tab:orange", "tab:blue", "tab:green"), strict=True))
_DASHED = {UNPATCHED_OFF.name, OFF.name}


def require_matplotlib() -> None:
    """Raise UsageError without the library that draws."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "The plots need matplotlib: install sglang-cp with its extra `plot`, or pass --no-plots and draw them "
            "elsewhere from the same file with --report-only."
        ) from error


def write(figure: Figure, path: Path) -> None:
    """As PNG, whole or not at all."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150)
    write_whole(path, picture.getvalue())


def ratios(figures: Figures, setup: Setup) -> Figure | None:
    """A row an arm: total throughput over CP off's, and CP off's median TTFT over the arm's, by concurrency.

    CP off is the unpatched arm, or the patched one where that was not measured; the row of the one left shows how much
    two equal servers differ. None without either, or without another arm.
    """
    from matplotlib.figure import Figure

    baseline = next((arm.name for arm in (UNPATCHED_OFF, OFF) if arm.name in figures.arms), None)
    arms = [arm for arm in figures.arms if arm != baseline]
    if baseline is None or not arms:
        return None
    figure = Figure(figsize=(11, 1.2 + 2.6 * len(arms)), layout="constrained")
    grid = figure.subplots(len(arms), 2, sharex=True, sharey="col", squeeze=False)
    for arm, (throughput, first_token) in zip(arms, grid, strict=True):
        _by_length(throughput, figures, arm, baseline, lambda mine, off: mine.total_tok_s / off.total_tok_s)
        _by_length(first_token, figures, arm, baseline, lambda mine, off: off.ttft_ms.median / mine.ttft_ms.median)
        throughput.set_ylabel(arm)
    grid[0][0].set_title(f"total throughput / that of {baseline}")
    grid[0][1].set_title(f"median TTFT of {baseline} / that of the arm")
    for panel in grid[-1]:
        panel.set_xlabel("concurrency")
    figure.legend(*grid[0][0].get_legend_handles_labels(), title="prompt tokens", loc="outside right upper")
    figure.suptitle(_title(setup), fontsize=10)
    return figure


def _by_length(
    panel: Axes, figures: Figures, arm: str, baseline: str, ratio: Callable[[Measurement, Measurement], float]
) -> None:
    """A curve a length, in the order of a colour map."""
    from matplotlib import colormaps

    lengths = sorted({length for length, _ in figures.workloads})
    concurrencies = sorted({concurrency for _, concurrency in figures.workloads})
    for index, length in enumerate(lengths):
        pairs = [(c, figures.get(arm, length, c), figures.get(baseline, length, c)) for c in concurrencies]
        points = [(c, ratio(mine, off)) for c, mine, off in pairs if mine is not None and off is not None]
        colour = colormaps["viridis"](0.9 * index / max(1, len(lengths) - 1))
        panel.plot([c for c, _ in points], [r for _, r in points], "o-", color=colour, label=f"{length:,}")
    panel.axhline(1, color="0.5", linewidth=0.8)
    panel.set_xscale("log", base=2)
    panel.set_xticks(concurrencies, [str(c) for c in concurrencies])
    panel.minorticks_off()


def frontier(figures: Figures, setup: Setup) -> Figure:
    """A panel a length: total throughput per GPU against interactivity, a curve an arm through its concurrencies.

    Interactivity is what one user sees: output tokens over the median end-to-end latency of a request.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter

    lengths = sorted({length for length, _ in figures.workloads})
    columns = min(3, len(lengths))
    rows = -(-len(lengths) // columns)
    figure = Figure(figsize=(1.5 + 4.2 * columns, 1.2 + 3.6 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel, length in zip(panels, lengths, strict=False):
        panel.set_title(f"{length:,} prompt tokens")
        panel.set(xscale="log", ylabel="total tokens/s per GPU")
        panel.xaxis.set_major_formatter(LogFormatter())
        panel.xaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
        panel.set_xlabel("interactivity, tokens/s/user: output tokens / median E2E latency", fontsize=8)
        for arm in figures.arms:
            points = sorted(
                (m for m in figures.of(arm) if m.point.input_tokens == length), key=lambda m: m.point.concurrency
            )
            x = [m.interactivity_tok_s for m in points]
            y = [m.total_tok_s / setup.tp_size for m in points]
            style = "--" if arm in _DASHED else "-"
            hollow = "none" if arm in _DASHED else _COLORS[arm]
            panel.plot(x, y, "o", linestyle=style, color=_COLORS[arm], markerfacecolor=hollow, label=arm, alpha=0.8)
            for index in {0, len(points) - 1} if points else ():
                text = str(points[index].point.concurrency)
                panel.annotate(text, (x[index], y[index]), textcoords="offset points", xytext=(4, 4), fontsize=7)
    for panel in panels[len(lengths) :]:
        panel.set_axis_off()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")
    figure.suptitle(f"{_title(setup)}; labels: concurrency; up and right is better", fontsize=10)
    return figure


def _title(setup: Setup) -> str:
    gpus = setup.machine["gpus"]
    machine = f"{setup.tp_size} x {gpus[0].partition(',')[0]}" if gpus else f"{setup.tp_size} CPU ranks"
    return f"{machine}, {setup.output_tokens} output tokens"
