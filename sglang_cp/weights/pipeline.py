"""Gathered weights of one layer after the other, the next one always on its way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from sglang_cp.ranks import together
from sglang_cp.weights.buffers import WeightBuffers, gathered_bytes
from sglang_cp.weights.shards import layer_shards
from sglang_cp.weights.source import Pull, ShardSource

GatheredWeights = dict[str, torch.Tensor]
"""name -> every rank's shard, [size, *shape as upstream holds the shard]"""


class WeightPipeline:
    """Pulls the shards of a model's attention layers in order, one layer ahead of their use."""

    def __init__(self, layers: Sequence[Any], source: ShardSource, size: int, device: torch.device) -> None:
        """``layers``: upstream's attention modules in forward order; the buffers are allocated here, once."""
        self._layers = layers
        self._source = source
        slot_bytes = max(gathered_bytes(layer_shards(layer), size) for layer in layers)
        self._buffers = WeightBuffers(slot_bytes, size, device)
        self._device_module = torch.get_device_module(device)
        self._pending: tuple[int, GatheredWeights, Pull] | None = None
        self.awaited: int | None = None
        """The layer whose shards the host waits for right now."""

    @property
    def buffer_bytes(self) -> int:
        return self._buffers.num_bytes

    @property
    def shard_bytes(self) -> list[int]:
        """Bytes of this rank's own shards, by layer."""
        return [sum(shard.num_bytes for shard in layer_shards(layer)) for layer in self._layers]

    def begin(self) -> None:
        """Start the first layer's pull: call it before the embedding, which hides it."""
        self._start(0)

    def take(self, index: int) -> GatheredWeights:
        """Layer ``index``'s gathered weights, valid until layer ``index + 2`` is pulled; starts the next layer's pull.

        Call it when the work of layer ``index - 1`` has been issued: the next pull reuses that layer's buffer.
        """
        if self._pending is None or self._pending[0] != index:
            self._start(index)
        assert self._pending is not None
        _, weights, pull = self._pending
        self.awaited = index
        pull.wait()
        self.awaited = None
        self._pending = None
        if index + 1 < len(self._layers):
            self._start(index + 1)
        return weights

    def measure_pulls(self, measured: Callable[[ShardSource], ShardSource]) -> None:
        """Pull through ``measured(source)`` from now on."""
        self._source = measured(self._source)

    def pull_all(self) -> None:
        """Pull all layers and use none: what the pulls cost with nothing to hide them."""
        self.begin()
        for index in range(len(self._layers)):
            self.take(index)

    @contextlib.contextmanager
    def weights_change(self, group: dist.ProcessGroup) -> Iterator[None]:
        """Around a change of the model's weights, on every rank: nothing is pulled before all are done.

        ``group``: the TP group's ranks, on a backend for CPU tensors.
        """
        together(group, self._settle)
        try:
            yield
        finally:
            together(group, self._refresh)

    def _settle(self) -> None:
        """Let every pull end: a peer is about to write what it reads."""
        if self._pending is not None:
            self._pending[2].wait()
            self._pending = None
        self._device_module.synchronize()

    def _refresh(self) -> None:
        self._source.refresh()
        self._device_module.synchronize()

    def _start(self, index: int) -> None:
        if self._pending is not None:
            # An extend that failed half-way left a pull behind; its buffer must not be written after ours.
            self._pending[2].wait()
        shards = layer_shards(self._layers[index])
        places = self._buffers.places(index, shards)
        pull = self._source.pull(index, shards, places)
        weights = {shard.name: shard.by_rank(places[shard.name]) for shard in shards}
        self._pending = (index, weights, pull)
