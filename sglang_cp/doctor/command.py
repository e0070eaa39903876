"""The command ``sglang-cp doctor``. Exit codes: 0 a launch should start, 1 it would fail, 2 unusable input."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sglang_cp.compat import StrEnum
from sglang_cp.errors import UsageError
from sglang_cp.weights.kind import SourceKind

_NO_GPU_HAS_GIB = 1e6


class KVCacheDtype(StrEnum):
    """Types of the KV pool that the estimate knows."""

    bfloat16 = "bfloat16"
    fp8_e4m3 = "fp8_e4m3"


class AttnWeights(StrEnum):
    """Values of --cp-attn-weights."""

    sharded = "sharded"
    replicated = "replicated"


class DraftAlgorithm(StrEnum):
    """Values of --speculative-algorithm with which SGLang drafts with the model's own NextN layer."""

    eagle = "EAGLE"
    nextn = "NEXTN"


def doctor(
    model_path: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Model directory; only its config.json is read.")
    ] = None,
    tp_size: Annotated[int | None, typer.Option(min=1, help="Ranks; by default all visible GPUs.")] = None,
    mem_fraction_static: Annotated[float, typer.Option(help="As the server's flag, between 0 and 1.")] = 0.85,
    gpu_memory_gb: Annotated[
        float | None, typer.Option(help="GiB of a GPU; by default the smallest visible one's.")
    ] = None,
    kv_cache_dtype: Annotated[KVCacheDtype, typer.Option(help="Type of the KV pool.")] = KVCacheDtype.bfloat16,
    speculative_algorithm: Annotated[
        DraftAlgorithm | None, typer.Option(help="Count the model's own NextN layer as the draft model.")
    ] = None,
    cp_attn_weights: Annotated[AttnWeights, typer.Option(help="Placement to check.")] = AttnWeights.sharded,
    cp_shard_source: Annotated[SourceKind, typer.Option(help="Source to check.")] = SourceKind.AUTO,
    json_output: Annotated[bool, typer.Option("--json", help="For programs: one JSON object, sizes in bytes.")] = False,
) -> None:
    """Say on one screen what a support thread needs, and whether a launch with CP would fail.

    The flags are those of the launch. Exit codes: 0 it should start, 1 it would fail (the reasons are listed), 2
    unusable input.
    """
    if not 0 < mem_fraction_static < 1:
        raise UsageError(f"--mem-fraction-static is {mem_fraction_static}: give a fraction between 0 and 1.")
    if gpu_memory_gb is not None and not 0 < gpu_memory_gb < _NO_GPU_HAS_GIB:
        raise UsageError(f"--gpu-memory-gb is {gpu_memory_gb}: give a GPU's memory in GiB.")

    from sglang_cp.doctor.estimate import GIB, Serving
    from sglang_cp.doctor.launch import Launch
    from sglang_cp.doctor.machine import examine
    from sglang_cp.doctor.model_config import read_config
    from sglang_cp.doctor.report import make_report
    from sglang_cp.doctor.weight_memory import CUDA, ROCM

    config = read_config(model_path) if model_path else None
    machine = examine()
    gpus = machine.gpus.value or ()
    ranks = tp_size or len(gpus) or None
    if config is not None and ranks is None:
        raise UsageError(
            "There is no visible GPU to count: say with --tp-size over how many ranks the model is served."
        )
    memory = (
        int(gpu_memory_gb * GIB) if gpu_memory_gb else min((gpu.memory_bytes for gpu in gpus[:ranks]), default=None)
    )
    serving = None
    if ranks is not None:
        serving = Serving(
            ranks,
            memory,
            mem_fraction_static,
            kv_cache_dtype.value,
            draft=speculative_algorithm is not None,
            platform=ROCM if machine.rocm else CUDA,
        )
    launch = Launch(
        ranks,
        cp_attn_weights.value,
        cp_shard_source.value,
        mem_fraction_static=mem_fraction_static,
        draft=speculative_algorithm is not None,
    )
    report = make_report(machine, launch, config, serving)
    if json_output:
        import json

        typer.echo(json.dumps(report.as_dict(), indent=2))
    else:
        from rich.console import Console

        from sglang_cp.doctor.screen import show

        show(report, Console(highlight=False))
    if report.problems:
        raise typer.Exit(1)
