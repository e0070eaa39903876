"""Seconds: the sum of the terms, and what host and pulls expose."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_cp.cost.model import EXPOSED_HOST, EXPOSED_PULLS, CostModel
from sglang_cp.cost.shape import ExtendShape
from sglang_cp.cost.terms import Geometry, Mode
from tests.cost.strategies import COEFFICIENTS, GEOMETRIES, SHAPES, grown

MODELS = st.builds(
    CostModel,
    geometry=GEOMETRIES,
    coefficients=COEFFICIENTS,
    pull_seconds=st.floats(0, 0.1),
    host_seconds=st.fixed_dictionaries({}, optional={mode: st.floats(0, 0.1) for mode in Mode}),
)


@settings(deadline=None)
@given(MODELS, SHAPES, st.sampled_from(Mode), st.integers(1, 50))
def test_more_rows_or_a_longer_prefix_never_take_less_time(model, shape, mode, more):
    before = model.seconds(shape, mode) * (1 - 1e-12)
    assert model.seconds(grown(shape, rows=more), mode) >= before
    assert model.seconds(grown(shape, prefix=more), mode) >= before


@settings(deadline=None)
@given(MODELS, st.integers(0, 1000), st.sampled_from(Mode))
def test_an_extend_without_rows_takes_no_time(model, prefix, mode):
    assert model.seconds(ExtendShape.of([0], [prefix]), mode) == 0


@settings(deadline=None)
@given(MODELS, SHAPES)
def test_both_modes_at_once_are_the_same_floats(model, shape):
    assert model.seconds_by_mode(shape) == {mode: model.seconds(shape, mode) for mode in Mode}


ROWS = CostModel(Geometry(2, 64), {"rows": 1e-3}, pull_seconds=0.05, host_seconds={Mode.TP: 0.01, Mode.CP: 0.02})


@pytest.mark.parametrize(
    ("rows", "tp_seconds", "cp_seconds"),
    [(4, 0.01, 0.05), (30, 0.03, 0.05), (60, 0.06, 0.06)],
    ids=["host and pulls exposed", "host hidden", "both hidden"],
)
def test_host_and_pulls_are_hidden_up_to_the_work(rows, tp_seconds, cp_seconds):
    shape = ExtendShape.of([rows])
    assert ROWS.seconds(shape, Mode.TP) == pytest.approx(tp_seconds)
    assert ROWS.seconds(shape, Mode.CP) == pytest.approx(cp_seconds)


def test_the_breakdown_names_what_is_exposed():
    short = ROWS.breakdown(ExtendShape.of([4]), Mode.CP)
    assert short == pytest.approx({"rows": 0.004, EXPOSED_HOST: 0.016, EXPOSED_PULLS: 0.03})
    assert ROWS.breakdown(ExtendShape.of([4]), Mode.TP)[EXPOSED_PULLS] == 0
