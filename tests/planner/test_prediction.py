"""Predictions of a closed loop: its identities and its limits."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_cp.errors import UsageError
from sglang_cp.planner.arms import Arm
from sglang_cp.planner.prediction import effect, predict
from sglang_cp.planner.system import Workload
from tests.planner.sets import H200, published, system

SYSTEM = system()
WORKLOADS = st.builds(Workload, st.integers(1, 200_000), st.integers(2, 4096), st.sampled_from([1, 2, 7, 16, 32, 48]))


@settings(deadline=None)
@given(WORKLOADS, st.sampled_from(Arm))
def test_e2e_is_first_token_and_the_rest_and_littles_law_holds(workload, arm):
    mine = predict(SYSTEM, arm, workload)
    assert mine.e2e_s == pytest.approx(mine.ttft_s + (workload.output_tokens - 1) * mine.tpot_s)
    requests_a_second = mine.total_tok_s_per_gpu * 4 / workload.tokens
    assert requests_a_second * mine.e2e_s == pytest.approx(workload.concurrency)
    assert 1 <= mine.running <= workload.concurrency
    assert mine.running * workload.tokens <= mine.pool_tokens


@settings(deadline=None)
@given(WORKLOADS)
def test_auto_is_never_slower_than_cp_off_or_the_fixed_threshold(workload):
    if workload.tokens * workload.concurrency > SYSTEM.pool_tokens[Arm.SHARDED]:
        return  # the two buffers' tokens may cost a place in the batch
    off, sharded, auto = (predict(SYSTEM, arm, workload).e2e_s for arm in (Arm.OFF, Arm.SHARDED, Arm.AUTO))
    assert auto <= min(off, sharded) * (1 + 1e-12)


def test_one_output_token_has_no_time_per_token():
    mine = predict(SYSTEM, Arm.OFF, Workload(4096, 1, 4))
    assert mine.tpot_s is None
    assert mine.e2e_s == mine.ttft_s


@pytest.mark.parametrize(("arm", "e2e", "ttft"), [(Arm.OFF, 42.68, 23.38), (Arm.REPLICATED, 30.05, 14.00)])
def test_the_published_anchor_under_load_which_is_not_fitted(arm, e2e, ttft):
    """Median E2E and TTFT at 40,960 tokens, concurrency 16."""
    mine = predict(SYSTEM, arm, Workload(40960, 512, 16))
    assert mine.e2e_s == pytest.approx(e2e, rel=0.05)
    assert mine.ttft_s == pytest.approx(ttft, rel=0.15)


def test_the_pool_limits_what_runs_at_once():
    """The post: about nineteen requests of 61,440 tokens fit with CP on; 199,744 tokens are three more without."""
    running = {arm: predict(SYSTEM, arm, Workload(61440, 512, 32)).running for arm in Arm}
    assert running == {Arm.OFF: 22, Arm.REPLICATED: 19, Arm.SHARDED: 22, Arm.AUTO: 22}
    mine = predict(SYSTEM, Arm.REPLICATED, Workload(61440, 512, 32))
    alone = predict(SYSTEM, Arm.REPLICATED, Workload(61440, 512, 19))
    assert mine.total_tok_s_per_gpu == pytest.approx(alone.total_tok_s_per_gpu, rel=0.01)
    assert mine.ttft_s > 1.5 * alone.ttft_s


def test_effect_is_relative_to_cp_off():
    workload = Workload(40960, 512, 1)
    assert effect(SYSTEM, Arm.OFF, workload) == 0
    on, off = (predict(SYSTEM, arm, workload).e2e_s for arm in (Arm.REPLICATED, Arm.OFF))
    assert effect(SYSTEM, Arm.REPLICATED, workload) == pytest.approx(off / on - 1)


@pytest.mark.parametrize(
    ("lens", "sentence"),
    [
        ((0, 512, 1), "--input-len is 0: give a number of tokens from 1 to."),
        ((-5, 512, 1), "--input-len is -5"),
        ((512, 0, 1), "--output-len is 0"),
        ((512, 512, 0), "--concurrency is 0: give a number of requests from 1 to."),
    ],
)
def test_counts_below_one_are_refused(lens, sentence):
    with pytest.raises(UsageError, match=sentence):
        Workload(*lens)


@pytest.mark.parametrize(
    ("name", "workload", "sentence"),
    [
        (H200, Workload(131_000, 73, 1), r"are over the context of 131,072 tokens: use shorter ones\."),
        (H200, Workload(4096, 33, 2), "Decode was measured up to concurrency 1 only, and --concurrency is 2"),
    ],
)
def test_what_cannot_be_predicted_is_refused(name, workload, sentence):
    with pytest.raises(UsageError, match=sentence):
        system(name).check(workload)
    system(name).check(Workload(131_000, 72, 1))


def test_a_request_over_the_pool_is_refused():
    from dataclasses import replace

    small = replace(SYSTEM, pool_tokens={Arm.OFF: 2000, Arm.REPLICATED: 1000})
    with pytest.raises(UsageError, match=r"1,100 tokens does not fit the KV pool of 1,000 tokens \(replicated\)"):
        small.check(Workload(1000, 100, 1))
    small.check(Workload(900, 100, 1))


def test_the_noise_is_the_published_one():
    assert published().noise == 0.08
