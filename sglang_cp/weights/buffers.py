"""Two reusable buffers for gathered weights, shared by all layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sglang_cp.weights.shards import Shard

_ALIGNMENT_BYTES = 256
"""Each tensor starts on a multiple of this: what vector loads and copy engines want."""


def aligned(num_bytes: int) -> int:
    """The next multiple of the alignment."""
    return -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def gathered_bytes(shards: Sequence[Shard], size: int) -> int:
    """Bytes of one layer's shards from ``size`` ranks, each tensor aligned."""
    return sum(aligned(shard.num_bytes * size) for shard in shards)


class WeightBuffers:
    """Two byte buffers, each large enough for the largest layer; a layer uses the one of its index's parity.

    Layer i + 2 reuses the bytes of layer i, so it may be pulled only once layer i's work has been issued.
    """

    def __init__(self, slot_bytes: int, size: int, device: torch.device | str) -> None:
        self.size = size
        self._slots = [torch.empty(slot_bytes, dtype=torch.uint8, device=device) for _ in range(2)]

    @property
    def num_bytes(self) -> int:
        return sum(slot.numel() for slot in self._slots)

    def places(self, layer: int, shards: Sequence[Shard]) -> dict[str, torch.Tensor]:
        """Where layer ``layer``'s shards go: name -> [size, num_bytes of the shard], uint8."""
        slot, start = self._slots[layer % 2], 0
        places = {}
        for shard in shards:
            num_bytes = shard.num_bytes * self.size
            places[shard.name] = slot[start : start + num_bytes].view(self.size, shard.num_bytes)
            start += aligned(num_bytes)
        return places
