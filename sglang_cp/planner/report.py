"""A plan on a terminal, in the terms of the published tables."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from sglang_cp.planner.arms import Arm
from sglang_cp.planner.plan import Plan
from sglang_cp.planner.prediction import Prediction
from sglang_cp.planner.published import SweepPoint


def print_plan(plan: Plan, console: Console) -> None:
    """Figures, the measured point beside them, break-evens, advice, and what it all rests on."""
    load = plan.workload
    console.print(
        f"{load.input_tokens:,} in / {load.output_tokens:,} out, concurrency {load.concurrency}. {plan.source}"
    )
    console.print(_figures(plan))
    if plan.published is not None:
        console.print(_measured(plan.published))
    if plan.break_even:
        console.print(_break_evens(plan))
    auto = "no prompt in the context" if plan.auto_break_even is None else f"prompts of {plan.auto_break_even:,} tokens"
    console.print(f"auto gains from {auto} on, whatever the output length.")
    console.print(f"Advice: {plan.advice}")
    for line in plan.basis:
        console.print(line, style="dim")


def _figures(plan: Plan) -> Table:
    table = Table(
        title="Predicted: median TTFT, total tok/s (replicated is SGLang's own CP)",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("CP")
    for column in ("TTFT (s)", "TPOT (ms)", "tok/s per GPU", "KV tokens", "running"):
        table.add_column(column, justify="right")
    off = plan.predictions[Arm.OFF]
    for arm, mine in plan.predictions.items():
        versus = None if arm is Arm.OFF else off
        table.add_row(
            str(arm),
            _ttft(mine, versus),
            "-" if mine.tpot_s is None else f"{mine.tpot_s * 1e3:.2f}",
            _throughput(mine, versus),
            "-" if mine.pool_tokens is None else f"{mine.pool_tokens:,}",
            str(mine.running),
        )
    return table


def _ttft(mine: Prediction, off: Prediction | None) -> str:
    return _seconds(mine.ttft_s) + ("" if off is None else f" ({off.ttft_s / mine.ttft_s:.2f}x)")


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f}" if seconds >= 1 else f"{seconds:.3f}"


def _throughput(mine: Prediction, off: Prediction | None) -> str:
    change = "" if off is None else f" ({mine.total_tok_s_per_gpu / off.total_tok_s_per_gpu - 1:+.1%})"
    return f"{mine.total_tok_s_per_gpu:.1f}{change}"


def _measured(point: SweepPoint) -> str:
    off, on = (point.total_tok_s_per_gpu[arm] for arm in (Arm.OFF, Arm.REPLICATED))
    parts = [f"total tok/s per GPU {off:.1f} → {on:.1f} ({point.effect:+.1%})"]
    if point.ttft_s:
        off, on = point.ttft_s[Arm.OFF], point.ttft_s[Arm.REPLICATED]
        parts.append(f"median TTFT (s) {_seconds(off)} → {_seconds(on)} ({off / on:.2f}x)")
    return f"Published for this point, CP off → SGLang's CP: {', '.join(parts)}."


def _break_evens(plan: Plan) -> Table:
    title = "Prompt tokens from which SGLang's CP gives more throughput than CP off"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    load = plan.workload.concurrency
    under_load = [f"concurrency {load}"] if load > 1 else []
    printed = ["published, 1"] if any(row.published for row in plan.break_even) else []
    for column in ("output tokens", "concurrency 1", *under_load, *printed):
        table.add_column(column, justify="right")
    for row in plan.break_even:
        cells = [f"{row.output_tokens:,}", _tokens(row.single_stream)]
        cells += [_tokens(row.under_load)] * len(under_load)
        cells += ["" if row.published is None else f"{row.published:,}"] * len(printed)
        table.add_row(*cells)
    return table


def _tokens(tokens: int | None) -> str:
    return "over the context" if tokens is None else f"{tokens:,}"
