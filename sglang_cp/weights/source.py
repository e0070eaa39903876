"""Where a layer's missing shards come from: the interface, and the process-group implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
import torch.distributed as dist

from sglang_cp.weights.kind import SourceKind
from sglang_cp.weights.shards import Shard


class Pull(Protocol):
    """Shards on their way."""

    def wait(self) -> None:
        """Make the shards usable by what the caller issues next."""
        ...


class ShardSource(Protocol):
    """Fills buffers with every rank's shards of a layer."""

    name: str

    def pull(self, layer: int, shards: Sequence[Shard], into: Mapping[str, torch.Tensor]) -> Pull:
        """Start to copy every rank's shards of layer ``layer``.

        Args:
            layer: index in forward order.
            shards: this rank's, as upstream holds them now.
            into: shard name -> [size, num_bytes], uint8.
        """
        ...

    def refresh(self) -> None:
        """Called on every rank after the weights were changed, while no rank pulls."""
        ...


class ProcessGroupSource:
    """All-gathers shards on a process group of its own.

    The group is not shared with the forward's collectives, so a pull one layer ahead cannot change their order. All
    ranks must pull the same layers in the same order: the decision that starts a CP extend is equal on all of them.
    Each pull reads the weights where upstream holds them, so they are never stale.
    """

    name = SourceKind.PROCESS_GROUP.label

    def __init__(self, ranks: Sequence[int]) -> None:
        """``ranks``: global ranks of the TP group. Every rank of the default group must make this call."""
        self._group = dist.new_group(list(ranks))

    def pull(self, layer: int, shards: Sequence[Shard], into: Mapping[str, torch.Tensor]) -> Pull:
        works = [
            dist.all_gather_into_tensor(into[shard.name].view(-1), shard.bytes(), group=self._group, async_op=True)
            for shard in shards
        ]
        return _Works(layer, works)

    def refresh(self) -> None:
        pass


class _Works:
    def __init__(self, layer: int, works: Sequence[dist.Work]) -> None:
        self._layer = layer
        self._works = works

    def wait(self) -> None:
        try:
            for work in self._works:
                work.wait()
        except RuntimeError as error:
            raise RuntimeError(
                f"The shards of attention layer {self._layer} did not come from the other ranks: one has ended or "
                f"does not answer, and its own log lines say why ({str(error).splitlines()[0]})."
            ) from error
