"""Memory of one rank in three arms: CP off, attention weights replicated, attention weights sharded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sglang_cp.doctor.kv_pool import KVPool
from sglang_cp.doctor.model_config import Geometry
from sglang_cp.doctor.quantization import format_of
from sglang_cp.doctor.weight_memory import CUDA, Platform, Ranks, WeightMemory

GIB = 1 << 30
"""SGLang's log divides by this and writes "GB"."""


@dataclass(frozen=True)
class Serving:
    """What of a launch decides over memory.

    Attributes:
        tp_size: --tp-size.
        gpu_memory_bytes: of the smallest GPU, None if unknown: then no pool is estimated.
        mem_fraction_static: --mem-fraction-static.
        kv_cache_dtype: --kv-cache-dtype, a key of kv_pool.KV_ITEM_BYTES.
        draft: whether the model's own NextN layer, if it has one, is the draft model (--speculative-algorithm EAGLE).
        platform: that serves.
    """

    tp_size: int
    gpu_memory_bytes: int | None = None
    mem_fraction_static: float = 0.85
    kv_cache_dtype: str = "bfloat16"
    draft: bool = False
    platform: Platform = CUDA


@dataclass(frozen=True)
class Arm:
    """Memory of one rank in one arm, in bytes.

    Attributes:
        weights: the target model by component; its sum is "mem usage" in SGLang's line "Load weight end".
        draft_bytes: the draft model.
        buffer_bytes: the buffers for gathered shards.
        pool_tokens: tokens of the KV pool ("max_total_num_tokens"), None if the GPU's memory is unknown.
        pool_bytes: what they take.
    """

    weights: Mapping[str, int]
    draft_bytes: int
    buffer_bytes: int
    pool_tokens: int | None
    pool_bytes: int | None

    @property
    def weight_bytes(self) -> int:
        return sum(self.weights.values())

    @property
    def static_bytes(self) -> int:
        """All that is loaded before the pool is sized."""
        return self.weight_bytes + self.draft_bytes + self.buffer_bytes


def estimate(config: Mapping[str, Any], serving: Serving) -> dict[str, Arm]:
    """The arms ``off``, ``replicated`` and ``sharded`` of a model's config.json.

    An upper bound of the pool: what the driver, the communicators and other processes hold is not in a config.
    Raises UsageError for a config, a quantization or a --tp-size that it cannot use.
    """
    geometry = Geometry.from_config(config)
    geometry.require_shardable(serving.tp_size)
    memory = WeightMemory(geometry, format_of(config), serving.platform)
    pool = KVPool(
        geometry, serving.kv_cache_dtype, int(_drafts(geometry, serving)), serving.platform.scales_fp8_latents
    )
    plain, static = Ranks.plain_tp(serving.tp_size), Ranks.static_cp(serving.tp_size)
    return {
        "off": _arm(memory, pool, serving, plain, buffer_bytes=0),
        "replicated": _arm(memory, pool, serving, static, buffer_bytes=0),
        "sharded": _arm(memory, pool, serving, plain, memory.gather_buffers(serving.tp_size)),
    }


def _drafts(geometry: Geometry, serving: Serving) -> bool:
    return serving.draft and geometry.num_nextn_predict_layers > 0


def _arm(memory: WeightMemory, pool: KVPool, serving: Serving, ranks: Ranks, buffer_bytes: int) -> Arm:
    weights = memory.target(ranks)
    draft_bytes = sum(memory.draft(ranks).values()) if _drafts(memory.geometry, serving) else 0
    if serving.gpu_memory_bytes is None:
        return Arm(weights, draft_bytes, buffer_bytes, None, None)
    budget = int(serving.gpu_memory_bytes * serving.mem_fraction_static)
    tokens = pool.tokens(budget - sum(weights.values()) - draft_bytes - buffer_bytes)
    return Arm(weights, draft_bytes, buffer_bytes, tokens, pool.allocated_bytes(tokens))
