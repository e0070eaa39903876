"""The servers that parity compares: plain SGLang at tp 1 as the reference, and CP in its variants."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from evals.server import ServerSpec
from sglang_cp.tiny_checkpoint.config import TinyConfig
from sglang_cp.tiny_checkpoint.writer import write_tiny_checkpoint

KEEPS_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 29)}
"""glibc's malloc gives large tensors back to the system and faults them in anew: half of an extend's time on a CPU."""
CPU_PLATFORM = {
    "SGLANG_PLATFORM": "cpu_reference",
    "OMP_NUM_THREADS": "1",
    "SGLANG_CP_CPU_FORK": "1",
    **KEEPS_FREED_MEMORY,
}
"""Without a GPU. The thread count keeps ranks of several servers from waiting for each other; forked ranks need not
import SGLang again, which is most of a start."""
SPAWNED = {"SGLANG_CP_CPU_FORK": "0"}
"""Ranks started as SGLang starts them: each process finds the package and its plugins by itself."""

EAGLE = (
    *("--speculative-algorithm", "EAGLE", "--speculative-num-steps", "5"),
    *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "6"),
)
"""Speculative decoding with the checkpoint's own NextN layer: chains of five drafts, as AMD configures it."""


@dataclass(frozen=True)
class Arm:
    """One candidate.

    Attributes:
        name: of the arm, and of its log file.
        tp_size: ranks.
        cp_weights: ``sharded``, ``replicated``, or None for CP off.
        min_tokens: ``--cp-min-tokens``.
        shard_source: ``--cp-shard-source``.
        row_collectives: ``--cp-row-collectives``.
        chunk: ``--chunked-prefill-size`` in tokens.
        mixed: prefill and decode in one batch (``--enable-mixed-chunk``).
        drafts: speculative decoding with the checkpoint's NextN layer.
        spawned: ranks start as SGLang starts them.
    """

    name: str
    tp_size: int
    cp_weights: str | None
    min_tokens: int | str = 2
    shard_source: str = "auto"
    row_collectives: str = "auto"
    chunk: int = 128
    mixed: bool = False
    drafts: bool = False
    spawned: bool = False

    def spec(self, model: Path, dtype: str) -> ServerSpec:
        args = ["--tp-size", str(self.tp_size), "--chunked-prefill-size", str(self.chunk)]
        if self.cp_weights:
            args += ["--enable-prefill-cp", "--cp-strategy", "interleave", "--cp-attn-weights", self.cp_weights]
        if self.cp_weights == "sharded":
            args += ["--cp-min-tokens", str(self.min_tokens), "--cp-shard-source", self.shard_source]
            args += ["--cp-row-collectives", self.row_collectives]
        if self.mixed:
            args += ["--enable-mixed-chunk"]
        if self.drafts:
            args += EAGLE
        return ServerSpec(self.name, model, (*_cpu(dtype), *args), CPU_PLATFORM | (SPAWNED if self.spawned else {}))


def reference_spec(model: Path, dtype: str) -> ServerSpec:
    """Plain SGLang: one rank, CP off, every prompt in one piece, nothing cached; hidden states may be asked for."""
    args = ("--disable-radix-cache", "--enable-return-hidden-states")
    return ServerSpec("reference", model, (*_cpu(dtype), *args), CPU_PLATFORM)


def tiny_model(folder: Path, config: TinyConfig | None = None) -> Path:
    """A tiny random GLM-5.x in ``folder``, made unless it is there already."""
    config = config or TinyConfig()
    model = folder / f"tiny-{config.arch}-{config.layers}-layers-{config.heads}-heads"
    if config.nextn:
        model = model.with_name(f"{model.name}-nextn")
    if not model.exists():
        write_tiny_checkpoint(model, config)
    return model


def with_nominal_memory(spec: ServerSpec, memory_mib: int) -> ServerSpec:
    """``spec`` with the KV pool that fits into CPU ranks of ``memory_mib`` each, in place of a fixed one."""
    as_many_as_fit = ("--max-total-tokens", str(1 << 30))
    env = {**spec.env, "SGLANG_CP_CPU_MEMORY_MIB": str(memory_mib)}
    return replace(spec, args=(*spec.args, *as_many_as_fit), env=env)


def _cpu(dtype: str) -> tuple[str, ...]:
    return ("--device", "cpu", "--dtype", dtype)


SYMMETRIC = "symmetric-memory"

ARMS = (
    Arm("tp2-off", 2, None),
    # Every extend is dealt out.
    Arm("tp2-sharded", 2, "sharded"),
    Arm("tp4-sharded", 4, "sharded", shard_source=SYMMETRIC, row_collectives=SYMMETRIC, chunk=512, mixed=True),
    # A request of 601 tokens has a chunk of 512 that is dealt out and a rest that is not.
    Arm("tp2-sharded-256", 2, "sharded", min_tokens=256, chunk=512, spawned=True),
    Arm("tp2-replicated", 2, "replicated", spawned=True),
    Arm("tp4-replicated", 4, "replicated", chunk=512),
)
"""The arms of the parity harness."""
