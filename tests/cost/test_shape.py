"""Counts of an extend, against counting row by row."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_cp.cost.shape import ExtendShape, chunks
from tests.cost.strategies import SHAPES


def keys_seen(shape):
    """How many keys each new row sees."""
    lens = zip(shape.extend_lens, shape.prefix_lens, strict=True)
    return [prefix + row for extend, prefix in lens for row in range(1, extend + 1)]


@settings(deadline=None)
@given(SHAPES, st.integers(1, 100))
def test_counts_are_those_of_the_rows(shape, index_topk):
    seen = keys_seen(shape)
    assert shape.rows == len(seen)
    assert shape.causal_pairs == sum(seen)
    assert shape.attended_pairs(index_topk) == sum(min(keys, index_topk) for keys in seen)
    assert shape.longest == max(e + p for e, p in zip(shape.extend_lens, shape.prefix_lens, strict=True))


@settings(deadline=None)
@given(st.integers(1, 500), st.integers(1, 200))
def test_chunks_are_the_prompt_in_order_and_score_what_it_scores(prompt, chunk):
    extends = chunks(prompt, chunk)
    assert [row for e in extends for row in keys_seen(e)] == keys_seen(ExtendShape.of([prompt]))
    assert max(e.rows for e in extends) <= chunk


@pytest.mark.parametrize(("extends", "prefixes"), [([-1], [0]), ([1], [-1]), ([1, 2], [0])])
def test_impossible_lengths_are_refused(extends, prefixes):
    with pytest.raises(ValueError, match=r"negative|do not go with"):
        ExtendShape.of(extends, prefixes)
