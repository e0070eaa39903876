"""The token layout of one CP extend: which rank owns which row, as pure functions.

A *row* is one token of the flattened extend batch. The interleave layout deals row i to rank i mod size, whatever
request it belongs to. Every rank pads its rows to ``padded_rows`` so that collectives are even; padding sits at the
end of a rank's rows.

*rank order* is what an all-gather leaves: rank 0's padded rows, then rank 1's, and so on. *token order* is the
prompt's own order, without padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch


class RequestSplit(NamedTuple):
    """The requests that have rows on one rank."""

    indices: list[int]
    """Positions in the batch of the requests with at least one row here."""
    rows: list[int]
    """How many rows each of them has here, in the same order."""


@dataclass(frozen=True)
class TokenLayout:
    """One rank's view of ``num_rows`` rows dealt to ``size`` ranks.

    Raises:
        ValueError: for a rank outside 0..size-1, or for fewer rows than ranks (a rank without rows has nothing to
            attend with, and plain TP is the right choice for so short a batch).
    """

    num_rows: int
    size: int
    rank: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} is outside the {self.size} ranks of the layout")
        if self.num_rows < self.size:
            raise ValueError(f"{self.num_rows} rows cannot be dealt to {self.size} ranks: use plain TP")

    @property
    def local_rows(self) -> int:
        """Rows this rank owns, without padding."""
        return _owned(self.num_rows, self.size, self.rank)

    @property
    def padded_rows(self) -> int:
        """Rows of each rank in collectives: the largest rank's count."""
        return -(-self.num_rows // self.size)

    @property
    def gathered_rows(self) -> int:
        """Rows of the complete padded batch, as an all-gather leaves it."""
        return self.padded_rows * self.size

    def own(self, rows: torch.Tensor) -> torch.Tensor:
        """[num_rows, ...] in token order -> [local_rows, ...]: this rank's rows, contiguous."""
        self._expect(rows, self.num_rows, "token order")
        # A copy even of one row, which passes for contiguous with any stride: aiter's RoPE wants a stride of 1.
        return rows[self.rank :: self.size].clone(memory_format=torch.contiguous_format)

    def pad(self, local: torch.Tensor) -> torch.Tensor:
        """[local_rows, ...] -> [padded_rows, ...], padded with zeros."""
        self._expect(local, self.local_rows, "this rank")
        if self.local_rows == self.padded_rows:
            return local
        padded = local.new_zeros((self.padded_rows, *local.shape[1:]))
        padded[: self.local_rows] = local
        return padded

    def near(self, local: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """[padded_rows, ...] -> [len(places), ...]: of each turn in which ``places`` were dealt, this rank's row.

        ``places``: integers, in token order; negative ones count from the end.
        """
        self._expect(local, self.padded_rows, "this rank, padded")
        return local[places % self.num_rows // self.size]

    def pick(self, gathered: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Every rank's :meth:`near`, in rank order -> [len(places), ...]: of each place its owner's row."""
        self._expect(gathered, self.size * len(places), "rank order")
        by_rank = gathered.view(self.size, len(places), *gathered.shape[1:])
        return by_rank[places % self.num_rows % self.size, torch.arange(len(places), device=places.device)]

    def split_requests(self, extend_lens: Sequence[int]) -> RequestSplit:
        """Which requests of the batch have rows here, and how many.

        Args:
            extend_lens: new tokens of each request, summing to ``num_rows``; zeros are allowed.
        """
        indices, rows, start = [], [], 0
        for index, length in enumerate(extend_lens):
            end = start + length
            here = _owned(end, self.size, self.rank) - _owned(start, self.size, self.rank)
            if here:
                indices.append(index)
                rows.append(here)
            start = end
        if start != self.num_rows:
            raise ValueError(f"the requests hold {start} rows, the layout {self.num_rows}")
        return RequestSplit(indices, rows)

    @staticmethod
    def _expect(rows: torch.Tensor, count: int, what: str) -> None:
        if rows.shape[0] != count:
            raise ValueError(f"expected {count} rows ({what}), got a tensor of shape {tuple(rows.shape)}")


def _owned(num_rows: int, size: int, rank: int) -> int:
    """How many of the first ``num_rows`` rows rank ``rank`` owns."""
    return (num_rows + size - 1 - rank) // size
