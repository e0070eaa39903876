"""A plan as a picture: what CP is worth by prompt length, and from where on by output length."""

from __future__ import annotations

import io
import math
from pathlib import Path

from sglang_cp.cost.files import check_place, write_whole
from sglang_cp.errors import UsageError
from sglang_cp.planner.arms import Arm
from sglang_cp.planner.break_even import break_even_tokens
from sglang_cp.planner.prediction import predict
from sglang_cp.planner.published import PublishedSet
from sglang_cp.planner.system import System, Workload

FORMATS = (".pdf", ".png", ".svg")
_POINTS = 60
_COLORS = {Arm.REPLICATED: "tab:orange", Arm.SHARDED: "tab:blue", Arm.AUTO: "tab:green"}


def check_plot(path: Path) -> None:
    """Raise UsageError if a plot cannot be made or not be written there."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"--plot {path} is of no known format: use a name that ends in one of {', '.join(FORMATS)}.")
    check_place(path, "--plot")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UsageError("--plot needs matplotlib: install sglang-cp with its extra `plot`.") from error


def write_plot(
    path: Path, system: System, workload: Workload, *, title: str, noise: float, published: PublishedSet | None
) -> None:
    """Three panels for the workload's output length and concurrency; published points are drawn as crosses."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 4.6), layout="constrained")
    throughput, first_token, break_even = figure.subplots(1, 3)
    arms = [arm for arm in system.arms if arm is not Arm.OFF]
    lengths = _lengths(system, workload)
    loads = [Workload(length, workload.output_tokens, workload.concurrency) for length in lengths]
    off = [predict(system, Arm.OFF, load) for load in loads]
    for arm in arms:
        mine = [predict(system, arm, load) for load in loads]
        style = {"color": _COLORS[arm], "label": str(arm), "linestyle": "--" if arm is Arm.SHARDED else "-"}
        ratios = [m.total_tok_s_per_gpu / o.total_tok_s_per_gpu for m, o in zip(mine, off, strict=True)]
        throughput.plot(lengths, ratios, **style)
        first_token.plot(lengths, [o.ttft_s / m.ttft_s for m, o in zip(mine, off, strict=True)], **style)
    if Arm.REPLICATED in arms:
        outputs = [2**power for power in range(4, 14) if 2**power < system.context_tokens]
        tokens = [break_even_tokens(system, Arm.REPLICATED, output, workload.concurrency) for output in outputs]
        break_even.plot(outputs, [math.nan if t is None else t for t in tokens], color=_COLORS[Arm.REPLICATED])
    auto = break_even_tokens(system, Arm.AUTO, workload.output_tokens, workload.concurrency)
    if auto is not None:
        break_even.axhline(auto, color=_COLORS[Arm.AUTO])
    if published is not None:
        for sweep in (*published.sweep, *published.single_stream):
            point = published.points(sweep.input_tokens, workload.output_tokens).get(workload.concurrency)
            if point is None:
                continue
            throughput.plot(sweep.input_tokens, 1 + point.effect, "x", color=_COLORS[Arm.REPLICATED])
            if point.ttft_s:
                speedup = point.ttft_s[Arm.OFF] / point.ttft_s[Arm.REPLICATED]
                first_token.plot(sweep.input_tokens, speedup, "x", color=_COLORS[Arm.REPLICATED])
        throughput.plot([], [], "x", color=_COLORS[Arm.REPLICATED], label="replicated, published")
    throughput.axhspan(1 - noise, 1 + noise, color="0.9", label=f"noise, {noise:.0%}")
    for panel, what in ((throughput, "total throughput / CP off"), (first_token, "TTFT of CP off / TTFT")):
        panel.axhline(1, color="0.5", linewidth=0.8)
        panel.set(xscale="log", xlabel="prompt tokens", ylabel=what)
        panel.axvline(workload.input_tokens, color="0.5", linewidth=0.8, linestyle=":")
    break_even.set(xscale="log", yscale="log", xlabel="output tokens", ylabel="break-even prompt tokens")
    throughput.legend()
    figure.suptitle(
        f"{title}; {workload.output_tokens:,} output tokens, concurrency {workload.concurrency}", fontsize=10
    )
    picture = io.BytesIO()
    figure.savefig(picture, format=path.suffix.removeprefix("."))
    try:
        write_whole(path, picture.getvalue())
    except OSError as error:
        raise UsageError(f"--plot {path} cannot be written ({error.strerror}): give another place.") from error


def _lengths(system: System, workload: Workload) -> list[int]:
    """Prompt lengths from 256 tokens to what context and pools hold, at most 262,144; evenly spaced logarithms."""
    room = min(system.context_tokens, *system.pool_tokens.values()) - workload.output_tokens
    longest = max(min(room, 2**18), workload.input_tokens)
    shortest = min(256, workload.input_tokens)
    steps = [shortest * (longest / shortest) ** (step / (_POINTS - 1)) for step in range(_POINTS)]
    return sorted({round(length) for length in steps})
