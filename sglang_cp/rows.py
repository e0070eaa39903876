"""Collectives on rows: the only communication of a CP extend besides the weight shards."""

from __future__ import annotations

from typing import Protocol

import torch


class RowCollectives(Protocol):
    """What all ranks of a CP extend do with their rows at the same point.

    n is the same on all of them; tensors may have any strides.
    """

    @property
    def name(self) -> str:
        """For people."""
        ...

    @property
    def num_bytes(self) -> int:
        """Memory of this rank that is kept for it."""
        ...

    def all_gather(self, local: torch.Tensor) -> torch.Tensor:
        """[n, ...] on each rank -> [size * n, ...] on all, in rank order."""
        ...

    def all_gather_dealt(self, local: torch.Tensor) -> torch.Tensor:
        """[n, ...] on each rank -> [n * size, ...] on all, in token order: every rank's first row, then the second."""
        ...

    def reduce_scatter(self, partial: torch.Tensor) -> torch.Tensor:
        """[size * n, ...] of partial sums on each rank, in rank order -> [n, ...], summed over ranks."""
        ...


class ProcessGroup(Protocol):
    """What is needed of a process group; SGLang's GroupCoordinator is one."""

    def all_gather_into_tensor(self, output: torch.Tensor, input: torch.Tensor) -> None: ...

    def reduce_scatter_tensor(self, output: torch.Tensor, input: torch.Tensor) -> None: ...


class ProcessGroupRows:
    """By the collectives of a process group.

    They get contiguous tensors: a strided one is read as if it were dense.
    """

    name = "process group"
    num_bytes = 0

    def __init__(self, group: ProcessGroup, size: int) -> None:
        self._group = group
        self._size = size

    def all_gather(self, local: torch.Tensor) -> torch.Tensor:
        gathered = local.new_empty((self._size * local.shape[0], *local.shape[1:]))
        self._group.all_gather_into_tensor(gathered, local.contiguous())
        return gathered

    def all_gather_dealt(self, local: torch.Tensor) -> torch.Tensor:
        by_rank = self.all_gather(local).view(self._size, *local.shape)
        return by_rank.transpose(0, 1).reshape(-1, *local.shape[1:])

    def reduce_scatter(self, partial: torch.Tensor) -> torch.Tensor:
        local = partial.new_empty((partial.shape[0] // self._size, *partial.shape[1:]))
        self._group.reduce_scatter_tensor(local, partial.contiguous())
        return local
