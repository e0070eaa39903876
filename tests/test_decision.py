"""The decision is a pure function of the batch's lengths."""

from hypothesis import given
from hypothesis import strategies as st

from sglang_cp.cost.model import CostModel
from sglang_cp.cost.terms import Geometry
from sglang_cp.decision import Decision, Predicted, Threshold, mode_text

SCORING = CostModel(Geometry(tp=4, index_topk=64), {"launch_cp": 1.0, "scoring": 1e-4})
"""TP scores every pair on every rank; CP a quarter of them, after 1 s."""


@given(st.lists(st.integers(0, 100), max_size=8), st.integers(1, 8), st.integers(1, 300))
def test_dealt_out_from_the_threshold_on_and_never_with_fewer_rows_than_ranks(lens, size, min_tokens):
    decision = Threshold(size, min_tokens).decide(lens, [0] * len(lens))
    assert decision.context_parallel == (sum(lens) >= max(size, min_tokens))


@given(st.permutations([(3, 0), (0, 7), (250, 64), (17, 999)]))
def test_order_of_requests_does_not_matter(requests):
    lens, prefixes = zip(*requests, strict=True)
    for policy in (Threshold(4, 256), Predicted(SCORING)):
        assert policy.decide(lens, prefixes) == policy.decide([3, 0, 250, 17], [0, 7, 64, 999])


def test_a_threshold_knows_nothing_of_prefixes_and_a_prediction_does():
    assert Threshold(4, 60).decide([50], [0]) == Threshold(4, 60).decide([50], [9000])
    assert not Predicted(SCORING).decide([50], [100]).context_parallel
    assert Predicted(SCORING).decide([50], [500]).context_parallel


def test_a_prediction_never_deals_out_fewer_rows_than_ranks():
    free = CostModel(Geometry(tp=4, index_topk=1), {"launch_tp": 1.0})
    assert not Predicted(free).decide([1, 2], [0, 0]).context_parallel
    assert Predicted(free).decide([1, 3], [0, 0]).context_parallel


def test_reasons_are_few_and_the_numbers_stand_beside_them():
    policy = Threshold(size=4, min_tokens=2048)
    assert str(policy.decide([2047], [0])) == "2,047 < 2,048"
    assert str(policy.decide([2000, 48], [0, 0])) == "2,048 >= 2,048"
    assert str(policy.decide([3], [0])) == "3 < 4 ranks"
    assert policy.decide([2047], [0]).reason == policy.decide([1999], [0]).reason
    assert str(Predicted(SCORING).decide([200], [0])) == "cp 1502.5 ms < tp 2010.0 ms"
    assert str(Decision(False, "padded batch")) == "padded batch"


def test_the_log_says_how_many_rows_a_rank_computes_padding_included():
    assert mode_text(Decision(True, "threshold reached", "32,766 >= 5,120"), 32766, 4) == (
        "cp: 4 x 8192 rows (32,766 >= 5,120)"
    )
    assert mode_text(Decision(False, "under the threshold", "2,048 < 5,120"), 2048, 4) == "tp (2,048 < 5,120)"
