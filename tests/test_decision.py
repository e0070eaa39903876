"""The decision is a pure function of the batch's lengths."""

from hypothesis import given
from hypothesis import strategies as st

from sglang_cp.decision import Policy


@given(st.lists(st.integers(0, 100), max_size=8), st.integers(1, 8), st.integers(1, 300))
def test_dealt_out_from_the_threshold_on_and_never_with_fewer_rows_than_ranks(lens, size, min_tokens):
    decision = Policy(size, min_tokens).decide(lens)
    assert decision.context_parallel == (sum(lens) >= max(size, min_tokens))


@given(st.permutations([3, 0, 250, 17]))
def test_order_of_requests_does_not_matter(lens):
    assert Policy(4, 256).decide(lens) == Policy(4, 256).decide([3, 0, 250, 17])


def test_reasons_name_the_numbers():
    policy = Policy(size=4, min_tokens=2048)
    assert policy.decide([2047]).reason == "2,047 < 2,048"
    assert policy.decide([2000, 48]).reason == "2,048 >= 2,048"
    assert policy.decide([3]).reason == "3 < 4 ranks"
