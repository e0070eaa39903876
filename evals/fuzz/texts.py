"""From a prompt's piece to token ids: pure."""

from __future__ import annotations

import random
from functools import lru_cache

from evals.fuzz.streams import Piece
from sglang_cp.tiny_checkpoint.vocabulary import GENERATED_IDS

_LONGEST = 4096


@lru_cache(maxsize=512)
def _endless(seed: int) -> tuple[int, ...]:
    # random() is the generator's one method whose values Python promises for all releases.
    draw = random.Random(seed).random
    return tuple(GENERATED_IDS[int(draw() * len(GENERATED_IDS))] for _ in range(_LONGEST))


def piece_ids(piece: Piece) -> tuple[int, ...]:
    """Token ids of a piece that has a seed; ValueError for one that the reference has to answer, or a longer one."""
    if piece.seed is None:
        raise ValueError("a piece without a seed is what the reference answers")
    if piece.tokens > _LONGEST:
        raise ValueError(f"a piece has at most {_LONGEST:,} tokens")
    text = _endless(piece.seed)
    if piece.period:
        text = text[: piece.period] * (piece.tokens // piece.period + 1)
    return text[: piece.tokens]
