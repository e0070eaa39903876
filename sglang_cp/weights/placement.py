"""Attaches the all-heads attention to a loaded model whose attention weights tensor parallelism shards."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from sglang_cp.errors import UsageError
from sglang_cp.weights.attention import with_all_heads
from sglang_cp.weights.pipeline import WeightPipeline
from sglang_cp.weights.source import ProcessGroupSource

_FP8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)


class ShardedAttention:
    """Attention weights stay sharded; a CP extend gathers them layer by layer.

    Build it after loading and post-processing and before the KV pool is sized, so that the pool leaves room for the
    two buffers. Every rank must build it at the same point (a process group is made).
    """

    def __init__(self, model: torch.nn.Module, ranks: Sequence[int], device: torch.device | str) -> None:
        layers = _dsa_layers(model)
        if not layers:
            raise UsageError(f"{type(model).__name__} has no DSA attention layer to gather weights for")
        for layer in layers:
            _check_format(layer)
        size = len(ranks)
        source = ProcessGroupSource(ranks)
        self._pipeline = WeightPipeline(layers, source, size, device)
        self._with_all_heads = {
            id(layer): with_all_heads(layer, size, partial(self._pipeline.take, index))
            for index, layer in enumerate(layers)
        }
        self.description = (
            f"sharded, from a {source.name}, {max(self._pipeline.shard_bytes) / 1e6:.1f} MB of a layer on each rank, "
            f"{self._pipeline.buffer_bytes / 1e6:.1f} MB of buffers"
        )

    def begin(self) -> None:
        """Start the first layer's pull; the embedding hides it."""
        self._pipeline.begin()

    def attention(self, layer: Any) -> Any:
        """The all-heads attention of upstream's ``layer``."""
        return self._with_all_heads[id(layer)]


def _dsa_layers(model: torch.nn.Module) -> list[Any]:
    """Upstream's DSA attention modules in forward order."""
    found = [module for module in model.modules() if getattr(module, "use_dsa", False) and hasattr(module, "w_kc")]
    return sorted(found, key=lambda module: int(module.layer_id))


def _check_format(layer: Any) -> None:
    if layer.w_kc is None:
        raise UsageError("the absorbed weights of a DSA layer are missing: the checkpoint was not post-processed")
    if layer.w_kc.dtype in _FP8 and not layer.use_deep_gemm_bmm:
        raise UsageError(
            "FP8 attention weights with one scale per rank cannot be gathered yet: "
            "serve this checkpoint with --cp-attn-weights replicated"
        )
