"""Collectives on rows by plain copies between the ranks' memory (torch's symmetric memory).

Copies of contiguous memory run on copy engines, near the link's speed, and leave the SMs to computation.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory

from sglang_cp.ranks import together

HALF_BYTES = 32 << 20
"""Of each half of the staging memory: what one round moves. A barrier a round costs some percent of its copies."""


class SymmetricMemoryRows:
    """Every rank has staging memory that its peers read and write; a collective goes through it in rounds.

    The rounds of all collectives use its two halves in turn, with one barrier each: who has passed the barrier of the
    next round has left the half of this one. All ranks call the same collectives in the same order, on streams that
    wait for each other.
    """

    name = "symmetric memory"

    def __init__(self, group: dist.ProcessGroup, device: torch.device, half_bytes: int = HALF_BYTES) -> None:
        """``group``: the TP group's ranks, on a backend for CPU tensors; each rank makes this call at the same point.

        Raises:
            StepFailedError: on every rank, if one cannot have the memory.
        """
        self._size, self._rank = dist.get_world_size(group), dist.get_rank(group)
        self._half_bytes = half_bytes
        self.num_bytes = 2 * half_bytes
        staging = together(group, lambda: symmetric_memory.empty(self.num_bytes, dtype=torch.uint8, device=device))
        self._handle = together(group, lambda: symmetric_memory.rendezvous(staging, group))
        self._staging = staging  # its memory goes with the tensor
        whole = [self._handle.get_buffer(rank, (self.num_bytes,), torch.uint8) for rank in range(self._size)]
        self._halves = [[memory[:half_bytes] for memory in whole], [memory[half_bytes:] for memory in whole]]

    def all_gather(self, local: torch.Tensor) -> torch.Tensor:
        gathered = local.new_empty((self._size, *local.shape))
        self._pull(local, gathered)
        return gathered.flatten(0, 1)

    def all_gather_dealt(self, local: torch.Tensor) -> torch.Tensor:
        gathered = local.new_empty((local.shape[0], self._size, *local.shape[1:]))
        self._pull(local, gathered.transpose(0, 1))
        return gathered.flatten(0, 1)

    def reduce_scatter(self, partial: torch.Tensor) -> torch.Tensor:
        """The sums are taken in rank order, of BF16 in float32."""
        by_owner = partial.unflatten(0, (self._size, -1))
        local = partial.new_empty(by_owner.shape[1:])
        for start, end in self._rounds(by_owner.transpose(0, 1)):
            shape = (self._size, end - start, *local.shape[1:])
            staged = self._stage(shape, partial.dtype)
            for owner in self._from_the_right():
                staged[owner][self._rank].copy_(by_owner[owner, start:end])
            self._handle.barrier()
            torch.sum(staged[self._rank], dim=0, out=local[start:end])
        return local

    def _pull(self, local: torch.Tensor, into: torch.Tensor) -> None:
        """[n, ...] of every rank to [size, n, ...], of any strides."""
        for start, end in self._rounds(local):
            staged = self._stage((end - start, *local.shape[1:]), local.dtype)
            staged[self._rank].copy_(local[start:end])
            self._handle.barrier()
            for rank in self._from_the_right():
                into[rank, start:end].copy_(staged[rank])

    def _rounds(self, rows: torch.Tensor) -> Iterator[tuple[int, int]]:
        """Start and end of the rows that fit into a half at a time; a round is begun by taking the other half."""
        count = rows.shape[0]
        fit = self._half_bytes // max(1, rows[0].numel() * rows.element_size()) if count else 1
        if not fit:
            raise ValueError(f"a row of {rows[0].numel() * rows.element_size():,} bytes does not fit into the staging")
        for start in range(0, count, fit):
            self._halves.reverse()
            yield start, min(start + fit, count)

    def _stage(self, shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
        """The half at hand of every rank's staging memory, as tensors."""
        num_bytes = torch.Size(shape).numel() * dtype.itemsize
        return [half[:num_bytes].view(dtype).view(shape) for half in self._halves[0]]

    def _from_the_right(self) -> list[int]:
        """All ranks, from this rank's right neighbour to itself, so that no two go for the same peer at once."""
        return [(self._rank + distance) % self._size for distance in range(1, self._size + 1)]
