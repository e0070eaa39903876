"""The doctor's screen: plain enough to be pasted into a support thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from sglang_cp.doctor.estimate import GIB, Arm
from sglang_cp.doctor.machine import Fact, Machine, Version
from sglang_cp.doctor.report import Report

_ARMS = {"off": "CP off", "replicated": "replicated", "sharded": "sharded"}


def show(report: Report, console: Console) -> None:
    """Print all sections; what is not available says why."""
    console.print(_versions(report.machine.versions))
    console.print(_facts(report))
    if report.arms.value is not None:
        console.print(_memory(report, report.arms.value))
    for problem in report.problems:
        console.print(f"PROBLEM  {problem}", markup=False, soft_wrap=True)
    if not report.problems:
        console.print("No problem found: a launch with these flags should start.", markup=False)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, show_header=bool(columns))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _versions(versions: Sequence[Version]) -> Table:
    table = _table("Versions", "", "found", "pin", "")
    verdicts = {True: "ok", False: "DIFFERS", None: ""}
    for version in versions:
        table.add_row(version.name, _text(version.found), version.wanted, verdicts[version.matches])
    return table


def _facts(report: Report) -> Table:
    table = _table("\nThis machine")
    table.show_header = False
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _rows(report, report.machine):
        table.add_row(name, text)
    return table


def _rows(report: Report, machine: Machine) -> Iterator[tuple[str, str]]:
    yield "Patches", _text(machine.patches)
    yield "Plugin", _text(machine.plugin)
    gpus = machine.gpus.value
    yield "GPUs", str(len(gpus)) if gpus is not None else _text(machine.gpus)
    for gpu in gpus or ():
        yield f"  {gpu.index}", f"{gpu.name}, {gpu.architecture}, {gpu.memory_bytes / GIB:.1f} GiB"
    yield "Peer access", _peers(machine)
    memory = machine.symmetric_memory
    yield "Symmetric memory", f"the first GPU has it (backend {memory.value})" if memory.value else _text(memory)
    yield "AITER", _text(machine.aiter)
    yield "Attention weights", report.launch.cp_attn_weights
    if report.launch.cp_attn_weights == "sharded":
        source = report.source
        yield "Shard source", f"{source.value[0]} ({source.value[1]})" if source.value else _text(source)
    if report.arms.value is None:
        yield "Memory estimate", _text(report.arms)


def _peers(machine: Machine) -> str:
    pairs = machine.unreachable.value
    if pairs is None:
        return _text(machine.unreachable)
    if pairs:
        return "none from " + ", ".join(f"{one} to {other}" for one, other in pairs)
    return "between all GPUs" if len(machine.gpus.value or ()) > 1 else "a single GPU"


def _text(fact: Fact[Any]) -> str:
    return str(fact.value) if fact.value is not None else f"not available: {fact.why_not}"


def _memory(report: Report, arms: Mapping[str, Arm]) -> Table:
    serving = report.serving
    assert serving is not None
    gpu = f"{serving.gpu_memory_bytes / GIB:.1f} GiB" if serving.gpu_memory_bytes else "unknown memory"
    table = _table(
        f"\nMemory of a rank, estimated from the config, in GiB (SGLang's log writes GB): tp {serving.tp_size}, GPU of "
        f"{gpu}, fraction {serving.mem_fraction_static}, {serving.kv_cache_dtype} KV",
        "",
    )
    for name in arms:
        table.add_column(_ARMS[name], justify="right")

    def row(label: str, values: Iterator[int]) -> None:
        sizes = list(values)
        if any(sizes):
            table.add_row(label, *(f"{size / GIB:,.2f}" for size in sizes))

    for component in arms["off"].weights:
        row(f"  {component}", (arm.weights[component] for arm in arms.values()))
    row("weights", (arm.weight_bytes for arm in arms.values()))
    row("draft model", (arm.draft_bytes for arm in arms.values()))
    row("gather buffers", (arm.buffer_bytes for arm in arms.values()))
    row("KV pool, at most", (arm.pool_bytes or 0 for arm in arms.values()))
    if serving.gpu_memory_bytes:
        table.add_row("KV pool, tokens", *(f"{arm.pool_tokens:,}" for arm in arms.values()))
    else:
        table.caption = "Name --gpu-memory-gb for an estimate of the KV pool."
    return table
