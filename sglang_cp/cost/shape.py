"""The lengths of one extend batch, and what they add up to. All counts are of tokens, or of (row, key) pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class ExtendShape:
    """New tokens and cached prefix tokens of each request of one extend.

    What they add up to is reckoned once: a server asks for it between two batches.

    Raises:
        ValueError: for a negative length, or lists of different lengths.
    """

    extend_lens: tuple[int, ...]
    prefix_lens: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.extend_lens) != len(self.prefix_lens):
            raise ValueError(f"{len(self.extend_lens)} extend lengths do not go with {len(self.prefix_lens)} prefixes")
        if min((*self.extend_lens, *self.prefix_lens), default=0) < 0:
            raise ValueError(f"lengths must not be negative: {self.extend_lens}, {self.prefix_lens}")

    @classmethod
    def of(cls, extend_lens: Sequence[int], prefix_lens: Sequence[int] | None = None) -> ExtendShape:
        """From any sequences of integers; without prefixes, nothing is cached."""
        return cls(tuple(extend_lens), (0,) * len(extend_lens) if prefix_lens is None else tuple(prefix_lens))

    @cached_property
    def rows(self) -> int:
        """New tokens of the batch."""
        return sum(self.extend_lens)

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest request, its prefix included."""
        return max((e + p for e, p in zip(self.extend_lens, self.prefix_lens, strict=True)), default=0)

    @cached_property
    def causal_pairs(self) -> int:
        """(row, key) pairs that the indexer scores: a row sees its prefix, the rows before it, and itself."""
        return sum(e * p + e * (e + 1) // 2 for e, p in zip(self.extend_lens, self.prefix_lens, strict=True))

    def attended_pairs(self, index_topk: int) -> int:
        """(row, key) pairs that sparse attention computes: a row attends to at most ``index_topk`` keys."""
        pairs = 0
        for extend, prefix in zip(self.extend_lens, self.prefix_lens, strict=True):
            under = min(max(index_topk - prefix, 0), extend)  # rows that attend to all they see
            pairs += under * prefix + under * (under + 1) // 2 + (extend - under) * index_topk
        return pairs


def chunks(prompt_tokens: int, chunk_tokens: int) -> list[ExtendShape]:
    """The extends of one prompt under chunked prefill: each has all chunks before it as its prefix."""
    starts = range(0, prompt_tokens, chunk_tokens)
    return [ExtendShape.of([min(chunk_tokens, prompt_tokens - start)], [start]) for start in starts]
