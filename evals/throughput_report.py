"""The tables of a throughput run, for a terminal and, with the same content, for a Markdown file."""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from evals.throughput_goals import Figures, Judgement
from evals.throughput_results import Measurement, Quantiles, Setup

_COLORS = {"reached": "green", "missed": "red", "not measured": "yellow"}


def throughput_table(figures: Figures, setup: Setup) -> Table:
    """Throughput of every point, of all ranks together, and CP's part in it."""

    def cells(measured: Measurement) -> list[str]:
        ratio = figures.throughput_ratio(measured)
        return [
            f"{measured.total_tok_s:,.1f}",
            f"{measured.output_tok_s:,.1f}",
            "" if ratio is None else f"{ratio:.3f}",
            f"{measured.interactivity_tok_s:,.1f}",
            _extends(measured),
        ]

    columns = ("total\ntok/s", "output\ntok/s", "over\nunpatched", "tok/s\na user", "CP\nextends")
    return _by_workload(figures, f"throughput, {setup.output_tokens} output tokens, tp {setup.tp_size}", columns, cells)


def latency_table(figures: Figures) -> Table:
    """Latencies of every point."""
    columns = ("TTFT", "TPOT", "E2E")
    return _by_workload(
        figures,
        "latency in ms, median (p99)",
        columns,
        lambda measured: [_time(times) for times in (measured.ttft_ms, measured.tpot_ms, measured.e2e_ms)],
    )


def memory_table(figures: Figures) -> Table:
    """What the arms leave for KV, on the smallest pool of each arm's servers."""
    shown = Table(title="memory of a rank", title_justify="left", box=box.SIMPLE)
    shown.add_column("arm")
    for column in ("KV pool, tokens", "weights, GB", "CP buffers, bytes"):
        shown.add_column(column, justify="right")
    for arm in figures.arms:
        measured = min(figures.of(arm), key=lambda m: m.pool_tokens)
        weights = measured.memory_gb.get("weight")
        buffers = None if measured.cp_memory is None else measured.cp_memory.get("buffer_bytes")
        shown.add_row(
            arm,
            f"{measured.pool_tokens:,}",
            "" if weights is None else f"{weights:.2f}",
            "" if buffers is None else f"{buffers:,}",
        )
    return shown


def goals_table(judgements: Sequence[Judgement]) -> Table:
    """The worst ratio of each goal and arm. What only a profile shows (shard pulls exposed) is not here."""
    shown = Table(title="goals", title_justify="left", box=box.SIMPLE)
    for column in ("goal", "arm", "limit", "worst", "where", "verdict"):
        shown.add_column(column, no_wrap=column in ("arm", "limit", "verdict"))
    for found in judgements:
        shown.add_row(
            found.goal.text,
            found.arm,
            f"{'<=' if found.goal.at_most else '>='} {found.goal.limit}",
            "" if found.worst is None else f"{found.worst:.3f}",
            found.where,
            f"[{_COLORS[found.verdict]}]{found.verdict}",
        )
    return shown


def as_markdown(tables: Sequence[Table], figures: Figures, setup: Setup) -> str:
    """The tables under a heading each, and what was run on which machine."""
    text = io.StringIO()
    console = Console(file=text, width=1000, color_system=None)
    for table in tables:
        console.print(f"## {table.title}", highlight=False)
        table.title, table.box = None, box.MARKDOWN
        for column in table.columns:
            column.header = str(column.header).replace("\n", " ")
        for row in table.rows:
            row.end_section = False
        console.print(table)
    servers = [f"- `{arm}`: `{shlex.join(figures.of(arm)[0].server_args)}`" for arm in figures.arms]
    versions = ", ".join(f"{name} {found}" for name, found in setup.versions.items() if found)
    machine = ", ".join(setup.machine["gpus"]) or f"{setup.machine['cpus']} CPU cores"
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    lines += ["## servers", "", *servers, "", f"Machine: {machine}.", "", f"Versions: {versions}."]
    return "\n".join(lines) + "\n"


def _by_workload(
    figures: Figures, title: str, columns: Sequence[str], cells: Callable[[Measurement], list[str]]
) -> Table:
    """A row a point, the arms of a workload below each other."""
    shown = Table(title=title, title_justify="left", box=box.SIMPLE)
    shown.add_column("prompt x\nat a time", no_wrap=True)
    shown.add_column("arm", no_wrap=True)
    for column in columns:
        shown.add_column(column, justify="right", no_wrap=True)
    for length, concurrency in figures.workloads:
        for arm in figures.arms:
            measured = figures.get(arm, length, concurrency)
            if measured is not None:
                shown.add_row(f"{length:,} x {concurrency}", arm, *cells(measured))
        shown.add_section()
    return shown


def _time(quantiles: Quantiles) -> str:
    median, p99 = (
        f"{value:,.{2 if value < 100 else 1 if value < 1000 else 0}f}" for value in (quantiles.median, quantiles.p99)
    )
    return f"{median} ({p99})"


def _extends(measured: Measurement) -> str:
    """``-`` where nothing counts them."""
    if measured.cp_counters is None:
        return "-"
    extends = f"{measured.cp_counters['cp_extends']:,}"
    return f"[bold red]{extends} WRONG" if measured.problem else extends
