"""Where a layer's missing shards come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
import torch.distributed as dist

from sglang_cp.weights.shards import Shard


class Pull(Protocol):
    """Shards on their way."""

    def wait(self) -> None:
        """Make the shards usable by what the caller issues next."""
        ...


class ShardSource(Protocol):
    """Fills buffers with every rank's shards of a layer."""

    def pull(self, shards: Sequence[Shard], into: Mapping[str, torch.Tensor]) -> Pull:
        """Start to copy each shard of every rank into ``into[shard.name]`` of shape [size, *dense.shape]."""
        ...


class ProcessGroupSource:
    """All-gathers shards on a process group of its own.

    The group is not shared with the forward's collectives, so a pull one layer ahead cannot change their order. All
    ranks must pull the same layers in the same order: the decision that starts a CP extend is equal on all of them.
    """

    name = "process group"

    def __init__(self, ranks: Sequence[int]) -> None:
        """``ranks``: global ranks of the TP group. Every rank of the default group must make this call."""
        self._group = dist.new_group(list(ranks))

    def pull(self, shards: Sequence[Shard], into: Mapping[str, torch.Tensor]) -> Pull:
        works = [
            # Bytes, because a backend need not know FP8 or packed formats.
            dist.all_gather_into_tensor(
                into[shard.name].view(-1).view(torch.uint8),
                shard.dense.reshape(-1).view(torch.uint8),
                group=self._group,
                async_op=True,
            )
            for shard in shards
        ]
        return _Works(works)


class _Works:
    def __init__(self, works: Sequence[dist.Work]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()
