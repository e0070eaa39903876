"""What an arm's extends and first tokens take."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_cp.cost.model import CostModel
from sglang_cp.cost.shape import ExtendShape
from sglang_cp.cost.terms import Geometry, Mode
from sglang_cp.planner.arms import Arm
from sglang_cp.planner.prefill import Prefill

# CP saves half of 10 us a row; its pulls take 30 ms.
PREFILL = Prefill(CostModel(Geometry(2, 64), {"repeated_rows": 1e-5}, 0.03), 4096, {Arm.OFF: 0.1, Arm.REPLICATED: 0.2})


@settings(deadline=None)
@given(st.integers(1, 8192))
def test_auto_is_the_better_of_both_and_sharded_goes_by_its_threshold(rows):
    shape = ExtendShape.of([rows])
    off, replicated, sharded, auto = (PREFILL.extend_seconds(arm, shape) for arm in Arm)
    dealt_out = max(replicated, 0.03)
    assert auto == (min(off, dealt_out) if rows >= 2 else off)
    assert sharded == (dealt_out if rows >= 2048 else off)
    assert PREFILL.mode(Arm.AUTO, shape) is (Mode.CP if auto < off else Mode.TP)


def test_replicated_weights_need_no_pulls():
    assert PREFILL.extend_seconds(Arm.REPLICATED, ExtendShape.of([100])) == pytest.approx(50e-5)
    assert PREFILL.extend_seconds(Arm.SHARDED, ExtendShape.of([3000])) == pytest.approx(0.03)


def test_a_prompt_is_the_sum_of_its_chunks_and_a_short_tail_is_plain_tp():
    assert PREFILL.prompt_seconds(Arm.SHARDED, 4096 + 100) == pytest.approx(0.03 + 100e-5)


def test_only_sglangs_cp_has_a_request_cost_of_its_own():
    assert [PREFILL.beside_extends_seconds(arm) for arm in Arm] == [0.1, 0.2, 0.1, 0.1]
