"""Collectives on rows: the only communication of a CP extend besides the weight shards."""

from __future__ import annotations

from typing import Protocol

import torch

from sglang_cp.layout import TokenLayout


class RowGroup(Protocol):
    """What is needed of a process group; SGLang's GroupCoordinator is one."""

    def all_gather_into_tensor(self, output: torch.Tensor, input: torch.Tensor) -> None: ...

    def reduce_scatter_tensor(self, output: torch.Tensor, input: torch.Tensor) -> None: ...


def all_gather(group: RowGroup, layout: TokenLayout, local: torch.Tensor) -> torch.Tensor:
    """[padded_rows, ...] on each rank -> [gathered_rows, ...] on all, in rank order.

    The tensor is made contiguous first: a strided view in a collective is read as if it were dense.
    """
    gathered = local.new_empty((layout.gathered_rows, *local.shape[1:]))
    group.all_gather_into_tensor(gathered, local.contiguous())
    return gathered


def reduce_scatter(group: RowGroup, layout: TokenLayout, partial: torch.Tensor) -> torch.Tensor:
    """[gathered_rows, ...] of partial sums on each rank, in rank order -> [padded_rows, ...], summed over ranks."""
    local = partial.new_empty((layout.padded_rows, *partial.shape[1:]))
    group.reduce_scatter_tensor(local, partial.contiguous())
    return local
