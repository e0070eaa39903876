"""Greedy tokens and logprobs of real servers equal those of plain SGLang at tp 1 with CP off."""

import pytest

from evals.arms import ARMS, Arm
from evals.checks import MAX_LOGPROB_NATS, Reference, ask, batch, run_checks
from evals.parity import judge
from evals.prompts import LENGTHS, slices
from evals.server import running

BY_NAME = {arm.name: arm for arm in ARMS}
GLM_EXACT = ("glm", "float32")
FEWER_LENGTHS = (3, 33, 65, 257, 601)
CASES = [
    ("glm-index-share", "bfloat16", "tp2-sharded"),
    ("deepseek-v32", "float32", "tp2-sharded"),
    *((model, "bfloat16", name) for model in ("block-fp8", "mxfp4") for name in ("tp2-sharded", "tp4-sharded")),
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
    result = judge(name, checks, counters, expect_cp=arm.cp_weights is not None, tolerance=MAX_LOGPROB_NATS)
    assert result.problems == []
    assert completion == reference.completion(prompt="Prefill context parallelism", max_tokens=8)

    # Which chunks of one prompt of 601 tokens were dealt out: all, none, or the one of 512 but not the rest of 89.
    expected_rows = 0 if arm.cp_weights is None else 512 if arm.min_tokens == 256 else 601
    assert one_prompt["cp_rows"] == expected_rows
    assert one_prompt["cp_extends"] == -(-expected_rows // arm.chunk)
    assert abs(one_prompt["cp_local_rows"] - expected_rows / arm.tp_size) < max(1, one_prompt["cp_extends"])


@pytest.mark.parametrize("tp_size", [2, 4])
def test_a_dealt_out_batch_equals_plain_tp_of_the_same_server(tp_size, checkpoint, tokens, logs):
    """Quark's FP8 scales a token of o_proj's input over one rank's heads: plain SGLang's answers depend on the tp size.

    So the reference is the same server, asked for one prompt at a time, each below the threshold.
    """
    arm = Arm(f"tp{tp_size}-quark-fp8", tp_size, "sharded", min_tokens=256, chunk=512)
    prompts = slices(tokens, (129, 1, 3, 200, 2, 64, 7, 250))
    with running(arm.spec(checkpoint("quark-fp8"), "bfloat16"), logs) as server:
        plain = Reference(server)
        for prompt in prompts:
            plain.answer(prompt)
        assert server.cp_counters()["cp_extends"] == 0
        check = batch(plain, server, prompts)
        result = judge(arm.name, [check], server.cp_counters(), expect_cp=True, tolerance=MAX_LOGPROB_NATS)
    assert result.problems == []
