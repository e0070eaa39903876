"""Collectives on rows: the only communication of a CP extend besides the weight shards."""

from __future__ import annotations

from typing import Protocol

import torch


class RowGroup(Protocol):
    """What is needed of a process group; SGLang's GroupCoordinator is one."""

    def all_gather_into_tensor(self, output: torch.Tensor, input: torch.Tensor) -> None: ...

    def reduce_scatter_tensor(self, output: torch.Tensor, input: torch.Tensor) -> None: ...


def all_gather(group: RowGroup, size: int, local: torch.Tensor) -> torch.Tensor:
    """[n, ...] on each of ``size`` ranks -> [size * n, ...] on all, in rank order.

    The tensor is made contiguous first: a strided view in a collective is read as if it were dense.
    """
    gathered = local.new_empty((size * local.shape[0], *local.shape[1:]))
    group.all_gather_into_tensor(gathered, local.contiguous())
    return gathered


def reduce_scatter(group: RowGroup, size: int, partial: torch.Tensor) -> torch.Tensor:
    """[size * n, ...] of partial sums on each rank, in rank order -> [n, ...], summed over ranks."""
    local = partial.new_empty((partial.shape[0] // size, *partial.shape[1:]))
    group.reduce_scatter_tensor(local, partial.contiguous())
    return local
