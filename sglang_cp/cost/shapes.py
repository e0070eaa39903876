"""Which extends a calibration measures: few, and enough to tell the terms apart."""

from __future__ import annotations

from sglang_cp.cost.shape import ExtendShape
from sglang_cp.cost.terms import Geometry

_LENGTHS = (1 / 32, 1 / 4, 1 / 2, 1, 2, 4)
"""New tokens as multiples of index_topk: the fast path ends at 1, attention stops growing beyond."""
_AFTER_PREFIX = ((1 / 4, 2), (1 / 4, 16), (2, 16), (2, 8))
"""New tokens and prefix as multiples of index_topk: scoring grows with the prefix, rows do not."""


def calibration_shapes(geometry: Geometry, *, chunk_tokens: int, context_tokens: int) -> list[ExtendShape]:
    """Extends of one request that determine every term, up to 4 x index_topk rows after 16 x index_topk tokens.

    Args:
        geometry: of the server.
        chunk_tokens: most new tokens that one extend of it may have.
        context_tokens: most tokens of a request; longer prefixes are cut to fit.
    """
    shapes = []
    for length, prefix in [*((length, 0.0) for length in _LENGTHS), *_AFTER_PREFIX]:
        new = min(max(round(length * geometry.index_topk), geometry.tp), chunk_tokens, context_tokens)
        shapes.append(ExtendShape.of([new], [min(round(prefix * geometry.index_topk), context_tokens - new)]))
    return list(dict.fromkeys(shapes))
