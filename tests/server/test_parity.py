"""Greedy tokens and logprobs of real servers equal those of plain SGLang at tp 1 with CP off."""

import pytest

from evals.arms import ARMS
from evals.checks import ask, run_checks
from evals.parity import MAX_LOGPROB_NATS, judge
from evals.prompts import LENGTHS
from evals.server import running

BY_NAME = {arm.name: arm for arm in ARMS}
PLAIN_TP_NOISE_NATS = 1e-5
GLM_EXACT = ("glm", "float32")
FEWER_LENGTHS = (3, 33, 65, 257, 601)
CASES = [
    ("glm-index-share", "bfloat16", "tp2-sharded"),
    ("deepseek-v32", "float32", "tp2-sharded"),
    *((*GLM_EXACT, name) for name in BY_NAME),  # last: the planted faults use the same reference
]


@pytest.mark.parametrize(("model", "dtype", "name"), CASES, ids=["-".join(case) for case in CASES])
def test_answers_equal_plain_sglang(model, dtype, name, reference_of, checkpoint, tokens, logs):
    reference = reference_of(model, dtype)
    arm = BY_NAME[name]
    with running(arm.spec(checkpoint(model), dtype), logs) as server:
        lengths = LENGTHS if (model, dtype) == GLM_EXACT else FEWER_LENGTHS
        checks = run_checks(reference, server, tokens, lengths=lengths, on=lambda *_: None)
        counters = server.cp_counters()
        server.flush_cache()
        ask(server, tokens[:601])
        one_prompt = {name: count - counters[name] for name, count in server.cp_counters().items()}
        completion = server.completion(prompt="Prefill context parallelism", max_tokens=8)
    tolerance = MAX_LOGPROB_NATS if arm.cp_weights else PLAIN_TP_NOISE_NATS
    result = judge(name, checks, counters, expect_cp=arm.cp_weights is not None, tolerance=tolerance)
    assert result.problems == []
    assert completion == reference.completion(prompt="Prefill context parallelism", max_tokens=8)

    # Which chunks of one prompt of 601 tokens were dealt out: all, none, or the one of 512 but not the rest of 89.
    expected_rows = 0 if arm.cp_weights is None else 512 if arm.min_tokens == 256 else 601
    assert one_prompt["cp_rows"] == expected_rows
    assert one_prompt["cp_extends"] == -(-expected_rows // arm.chunk)
    assert abs(one_prompt["cp_local_rows"] - expected_rows / arm.tp_size) < max(1, one_prompt["cp_extends"])
