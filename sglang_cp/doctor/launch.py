"""What a launch with CP would use, and why it would fail."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from sglang_cp.doctor.estimate import GIB, Arm
from sglang_cp.doctor.machine import Fact, Machine
from sglang_cp.errors import SglangCpError
from sglang_cp.weights.kind import SourceKind, resolve


@dataclass(frozen=True)
class Launch:
    """The flags that matter, by SGLang's names; ``tp_size`` is None if neither a flag nor a GPU tells it."""

    tp_size: int | None
    cp_attn_weights: str = "sharded"
    cp_shard_source: str = "auto"
    cp_min_tokens: int = 2048
    mem_fraction_static: float = 0.85
    draft: bool = False


def choose_source(wanted: str, obstacle: str | None) -> tuple[str, str]:
    """The source that a server would take, from what one process can see, and why it is that one.

    Raises:
        UsageError: if symmetric memory was asked for by name and cannot be had.
    """
    source = resolve(SourceKind(wanted), obstacle)
    if source is SourceKind.SYMMETRIC_MEMORY:
        return source.label, "nothing is in the way; the ranks probe it when the server starts"
    return source.label, f"no symmetric memory: {obstacle}" if obstacle else "as --cp-shard-source says"


def symmetric_memory_obstacle(machine: Machine, tp_size: int | None) -> str | None:
    """What keeps the first ``tp_size`` GPUs from reading each other's symmetric memory, as far as one process sees."""
    if machine.gpus.value is None:
        return f"no GPU: {machine.gpus.why_not}"
    if machine.symmetric_memory.value is None:
        return machine.symmetric_memory.why_not
    if machine.unreachable.value is None:
        return machine.unreachable.why_not
    used = tp_size or len(machine.gpus.value)
    for one, other in machine.unreachable.value:
        if one < used and other < used:
            return f"GPU {one} cannot read the memory of GPU {other}"
    return None


def problems(
    launch: Launch,
    machine: Machine,
    config: Mapping[str, Any] | None,
    arms: Mapping[str, Arm] | None,
) -> list[str]:
    """One sentence for each reason why ``--enable-prefill-cp --cp-strategy interleave`` would not start here."""
    found = [fact.why_not for fact in (machine.patches, machine.plugin) if fact.value is None]
    found += _gpu_problems(launch, machine)
    if launch.cp_attn_weights == "sharded":
        if config is not None and launch.tp_size is not None:
            found += _startup_refusals(launch, config)
        try:
            choose_source(launch.cp_shard_source, symmetric_memory_obstacle(machine, launch.tp_size))
        except SglangCpError as error:
            found.append(str(error))
    if config is not None and launch.tp_size is not None:
        found += _expert_problems(config, launch.tp_size)
    if launch.draft and config is not None and not config.get("num_nextn_predict_layers"):
        found.append("The model has no NextN layer (num_nextn_predict_layers) to draft with: leave speculation off.")
    if arms is not None:
        found += _memory_problems(launch, arms)
    return found


def _gpu_problems(launch: Launch, machine: Machine) -> Iterator[str]:
    if os.environ.get("SGLANG_PLATFORM"):
        return  # another platform than CUDA or ROCm serves
    gpus: Fact[Any] = machine.gpus
    if gpus.value is None:
        yield f"There is no GPU to serve on: {gpus.why_not}; SGLANG_PLATFORM=cpu_reference serves tiny models without."
    elif launch.tp_size is not None and launch.tp_size > len(gpus.value):
        yield f"--tp-size {launch.tp_size} needs as many GPUs, and PyTorch sees {len(gpus.value)}."
    if machine.rocm and os.environ.get("SGLANG_USE_AITER") == "1" and machine.aiter.value is None:
        yield f"SGLANG_USE_AITER=1 needs AITER: {machine.aiter.why_not}; install it, or unset the variable."


def _startup_refusals(launch: Launch, config: Mapping[str, Any]) -> Iterator[str]:
    """What the server itself refuses, of the flags that the doctor knows; all others stand at SGLang's defaults."""
    from sglang_cp.startup import launch_problems

    resolved = SimpleNamespace(enable_dp_attention=False, attn_cp_size=1, moe_a2a_backend="none")
    hf_config = SimpleNamespace(
        architectures=config.get("architectures"), num_attention_heads=config.get("num_attention_heads", 0)
    )
    args = SimpleNamespace(
        cp_strategy="interleave",
        cp_shard_source=launch.cp_shard_source,
        cp_row_collectives="auto",  # measured by the server, if it can be had at all
        cp_min_tokens=launch.cp_min_tokens,
        tp_size=launch.tp_size,
        pp_size=1,
        dp_size=1,
        dcp_size=1,
        nnodes=1,
        moe_dense_tp_size=None,
        enable_memory_saver=False,
        get_model_config=lambda: SimpleNamespace(hf_config=hf_config),
        _resolved=lambda: resolved,
    )
    yield from launch_problems(args)


def _expert_problems(config: Mapping[str, Any], tp_size: int) -> Iterator[str]:
    """What SGLang checks only once it loads: whole features and whole FP8 blocks of an expert on each rank."""
    block = (config.get("quantization_config") or {}).get("weight_block_size")
    width = config.get("moe_intermediate_size") or 0
    if width % tp_size:
        yield f"--tp-size {tp_size} does not divide experts of {width} features: use one that does."
    elif block and width // tp_size % block[0]:
        yield (
            f"--tp-size {tp_size} cuts experts of {width} features into {width // tp_size}, which is not a multiple of "
            f"the FP8 block of {block[0]}: use a smaller one."
        )


def _memory_problems(launch: Launch, arms: Mapping[str, Arm]) -> Iterator[str]:
    arm = arms[launch.cp_attn_weights]
    if arm.pool_tokens == 0:
        yield (
            f"The weights take {arm.static_bytes / GIB:.2f} GB of each GPU and leave no room for the KV pool under "
            f"--mem-fraction-static {launch.mem_fraction_static}: use more GPUs, or raise it."
        )
