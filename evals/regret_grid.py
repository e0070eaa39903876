"""The extends that the choice between CP and TP is judged on."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from sglang_cp.cost.shape import ExtendShape

LENGTHS = tuple(2**power for power in range(6, 17))
BATCHES = (1, 2, 4, 8, 16)
PREFIXES = (0, 1024, 4096, 16384, 65536)
CHUNKS = (8192, 32768)
"""The full grid: new tokens of a request, requests, cached tokens of each, and tokens that one extend may have."""


def grid(
    lengths: Iterable[int] = LENGTHS,
    batches: Iterable[int] = BATCHES,
    prefixes: Iterable[int] = PREFIXES,
    chunks: Iterable[int] = CHUNKS,
) -> list[ExtendShape]:
    """The first extend that a scheduler makes of equal requests: as many as the chunk holds, the last one cut."""
    shapes = []
    for length, batch, prefix, chunk in product(lengths, batches, prefixes, chunks):
        room = [min(length, chunk - length * index) for index in range(batch)]
        extend_lens = [tokens for tokens in room if tokens > 0]
        shapes.append(ExtendShape.of(extend_lens, [prefix] * len(extend_lens)))
    return list(dict.fromkeys(shapes))


def small_grid() -> list[ExtendShape]:
    """For a tiny model on CPU ranks, whose index_topk is 32: seconds, not minutes."""
    return grid([12, 48, 192], [1, 4], [0, 700], [192])
