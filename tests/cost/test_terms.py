"""Each term by itself: never less for more work, nothing for nothing, and how the modes divide it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_cp.cost.shape import ExtendShape
from sglang_cp.cost.terms import TERMS, Geometry, Mode, units
from tests.cost.strategies import GEOMETRIES, SHAPES, grown

GLM = Geometry(tp=4, index_topk=2048)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("term", TERMS)
@settings(max_examples=50, deadline=None)
@given(SHAPES, GEOMETRIES, st.integers(1, 50))
def test_more_rows_or_a_longer_prefix_never_cost_less(term, mode, shape, geometry, more):
    before = units(term, shape, geometry, mode)
    assert units(term, grown(shape, rows=more), geometry, mode) >= before
    assert units(term, grown(shape, prefix=more), geometry, mode) >= before


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("term", TERMS)
@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), GEOMETRIES)
def test_no_rows_cost_nothing_whatever_the_prefix(term, mode, prefix, geometry):
    assert units(term, ExtendShape.of([0], [prefix]), geometry, mode) == 0


def both(term, extends, prefixes=None, geometry=GLM):
    return TERMS[term](ExtendShape.of(extends, prefixes), geometry)


def test_moe_is_not_divided_and_latents_are():
    assert both("rows", [8192]) == (8192, 8192)
    assert both("repeated_rows", [8192]) == (8192, 2048)


def test_cp_pays_for_padding_rows():
    assert both("rows", [8193]) == (8193, 8196)
    assert both("repeated_rows", [8193]) == (8193, 2049)


def test_scoring_is_divided_and_grows_with_the_prefix():
    assert both("scoring", [4096], [0]) == (4096 * 4097 / 2, 4096 * 4097 / 8)
    assert both("scoring", [1], [9999]) == (10_000, 2500)


@pytest.mark.parametrize("term", ["scoring", "index_rows"])
def test_plain_tp_skips_the_indexer_up_to_topk_and_cp_does_not(term):
    assert both(term, [2048]).tp == 0
    assert both(term, [2048]).cp > 0
    assert both(term, [48], [2000]).tp == 0
    assert both(term, [2049]).tp > 0
    # The gate is one for the batch: a long request brings the short ones in.
    assert both(term, [10, 1], [0, 2048]).tp > both(term, [1], [2048]).tp


def test_sparse_attention_stops_growing_at_topk_keys_a_row():
    far, farther = both("attention", [100], [4096]), both("attention", [100], [65536])
    assert far == farther == (100 * 2048 / 4, 100 * 2048 / 4)
    assert both("repeated_attention", [100], [4096]) == (100 * 2048, 100 * 2048 / 4)


def test_each_mode_pays_its_own_launch():
    assert both("launch_tp", [5]) == (1, 0)
    assert both("launch_cp", [5]) == (0, 1)


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 16), st.floats(1e-9, 1e-3))
def test_row_collectives_are_in_the_two_terms_that_the_docstring_says(tp, k):
    rows = tp * 100
    in_rows, in_repeated = 2 * k * (tp - 2) / (tp - 1), 2 * k * tp / (tp - 1)
    shape, geometry = ExtendShape.of([rows]), Geometry(tp, 2048)
    for mode, gathers in ((Mode.TP, 4), (Mode.CP, 2)):
        both_terms = in_rows * units("rows", shape, geometry, mode)
        both_terms += in_repeated * units("repeated_rows", shape, geometry, mode)
        assert both_terms == pytest.approx(gathers * k * rows)
