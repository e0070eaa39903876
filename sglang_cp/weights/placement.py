"""Attaches the all-heads attention to a loaded model whose attention weights tensor parallelism shards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from sglang_cp.errors import UsageError
from sglang_cp.weights.attention import with_all_heads
from sglang_cp.weights.choice import make_source
from sglang_cp.weights.kind import SourceKind
from sglang_cp.weights.pipeline import WeightPipeline
from sglang_cp.weights.source import ShardSource


class ShardedAttention:
    """Attention weights stay sharded; a CP extend pulls them layer by layer.

    Build it after loading and post-processing, before the KV pool is sized (the pool then leaves room for the two
    buffers) and before graphs are captured (weights may move), at the same point on every rank.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        group: dist.ProcessGroup,
        device: torch.device,
        *,
        source: SourceKind,
        memory_saver: contextlib.AbstractContextManager[Any] | None,
    ) -> None:
        """
        Args:
            model: upstream's, loaded; layers of draft models are not in it.
            group: the TP group's ranks, on a backend for CPU tensors.
            device: of the weights, with its index.
            source: what ``--cp-shard-source`` asks for.
            memory_saver: what to allocate within, so that the server's memory-release call frees the buffers too.

        Raises:
            UsageError: for a model without DSA layers, or a source that cannot be had.
        """
        layers = dsa_layers(model)
        if not layers:
            raise UsageError(f"{type(model).__name__} has no DSA attention layer to gather weights for")
        self._group = group
        size = dist.get_world_size(group)
        shards_from = make_source(source, layers, group, device, memory_saver=memory_saver is not None)
        with memory_saver or contextlib.nullcontext():
            self._pipeline = WeightPipeline(layers, shards_from, size, device)
        self._with_all_heads = {
            id(layer): with_all_heads(layer, size, partial(self._pipeline.take, index))
            for index, layer in enumerate(layers)
        }
        self.source_name = shards_from.name
        self.shard_bytes = max(self._pipeline.shard_bytes)
        """Bytes of one rank's shards of the largest layer."""
        self.buffer_bytes = self._pipeline.buffer_bytes

    def begin(self) -> None:
        """Start the first layer's pull; the embedding hides it."""
        self._pipeline.begin()

    def pull_all(self) -> None:
        """Pull all layers and use none, to time it."""
        self._pipeline.pull_all()

    def measure_pulls(self, measured: Callable[[ShardSource], ShardSource]) -> None:
        """Pull through ``measured(source)`` from now on."""
        self._pipeline.measure_pulls(measured)

    @property
    def awaited(self) -> str | None:
        """What this rank's host waits for right now, if for shards."""
        layer = self._pipeline.awaited
        return None if layer is None else f"the shards of attention layer {layer} ({self.source_name})"

    def attention(self, layer: Any) -> Any:
        """The all-heads attention of upstream's ``layer``."""
        return self._with_all_heads[id(layer)]

    def weights_change(self) -> contextlib.AbstractContextManager[None]:
        """Put around a change of the model's weights, on every rank: no rank pulls before all are done."""
        return self._pipeline.weights_change(self._group)


def dsa_layers(model: torch.nn.Module) -> Sequence[Any]:
    """Upstream's DSA attention modules in forward order."""
    found = [module for module in model.modules() if getattr(module, "use_dsa", False) and hasattr(module, "w_kc")]
    return sorted(found, key=lambda module: int(module.layer_id))
