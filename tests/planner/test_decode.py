"""What an arm's decode steps take."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_cp.planner.arms import Arm
from sglang_cp.planner.decode import Decode

DECODE = Decode(
    1.0, 0.01, 0.5, experts_seconds=2.0, request_seconds=0.1, replicated_request_seconds=0.2, routed_share=0.5
)


def test_only_sglangs_cp_decodes_slower():
    assert [DECODE.seconds_per_token(arm, 1, 10) for arm in Arm] == pytest.approx([1.1, 1.6, 1.1, 1.1])
    # Batch 3: half of the experts are read by one token, 7/8 by three.
    assert [DECODE.seconds_per_token(arm, 3, 0) for arm in Arm] == pytest.approx([1.95, 2.85, 1.95, 1.95])


@settings(deadline=None)
@given(st.integers(1, 500), st.floats(0, 1), st.integers(1, 8))
def test_the_share_of_experts_read_grows_with_the_batch_and_ends(batch, share, tokens):
    decode = Decode(1, 0, 0, routed_share=share, tokens_per_step=tokens)
    assert decode.more_experts(1) == 0
    assert 0 <= decode.more_experts(batch) <= decode.more_experts(batch + 1) <= 1
