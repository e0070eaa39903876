from hypothesis import given
from hypothesis import strategies as st

from sglang_cp.counters import Counters, Decisions
from sglang_cp.decision import Decision
from sglang_cp.layout import TokenLayout


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=2, max_size=6), st.integers(1, 60))
def test_rows_over_topk_are_those_that_see_more_keys(requests, topk):
    extend_lens = [new for _, new in requests]
    seq_lens = [prefix + new for prefix, new in requests]
    counters = Counters()
    counters.count(TokenLayout(sum(extend_lens), 2, 0), seq_lens, extend_lens, topk)
    dropped = sum(keys > topk for prefix, new in requests for keys in range(prefix + 1, prefix + new + 1))
    assert counters.cp_rows_over_topk == dropped


def test_counts_add_up_over_extends():
    counters = Counters()
    counters.count(TokenLayout(5, 2, 0), [5], [5], 3)
    counters.count(TokenLayout(4, 2, 0), [9], [4], 100)
    assert counters.as_dict() == {"cp_extends": 2, "cp_rows": 9, "cp_local_rows": 5, "cp_rows_over_topk": 2}


def test_extends_add_up_by_mode_and_reason_whatever_their_numbers():
    decisions = Decisions()
    assert decisions.as_dict() == {"cp": {}, "tp": {}}
    decisions.count(Decision(False, "under the threshold", "3 < 8"), 3)
    decisions.count(Decision(False, "under the threshold", "4 < 8"), 4)
    decisions.count(Decision(False, "padded batch"), 9)
    decisions.count(Decision(True, "threshold reached", "8 >= 8"), 8)
    assert decisions.as_dict() == {
        "cp": {"threshold reached": {"extends": 1, "rows": 8}},
        "tp": {"under the threshold": {"extends": 2, "rows": 7}, "padded batch": {"extends": 1, "rows": 9}},
    }
