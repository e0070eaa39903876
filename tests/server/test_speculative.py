"""Speculative decoding with the model's NextN layer, as in AMD's published configuration, while extends are dealt out.

Tokens equal those of plain SGLang without speculation, and just the drafts that plain TP gets right are right after a
CP extend: the draft model saw all hidden states, in token order. The checkpoint shares top-k rows between draft steps,
as GLM-5.2 does.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from evals.arms import Arm
from evals.checks import greedy
from evals.plugins import with_plugin
from evals.prompts import slices
from evals.server import running
from tests.server import speculative_faults

MODEL = ("glm-nextn", "float32")
MIN_TOKENS = 48
LENGTHS = (3, 33, 65, 128, 129, 300, 601)
"""In tokens: shorter than the threshold, around chunks of 128, and several chunks, the last of which is plain TP."""
NEW_TOKENS = 12


@dataclass(frozen=True)
class Drafted:
    """An answer: its tokens, and how many verifications found 0, 1, 2 and so on right drafts."""

    tokens: tuple[int, ...]
    right_drafts: tuple[int, ...]
    cached_tokens: int

    def __eq__(self, other):
        return (self.tokens, self.right_drafts) == (other.tokens, other.right_drafts)


def ask(server, prompt):
    response = server.generate(input_ids=list(prompt), sampling_params=greedy(NEW_TOKENS))
    meta = response["meta_info"]
    return Drafted(
        tuple(response["output_ids"]), tuple(meta["spec_correct_drafts_histogram"]), int(meta["cached_tokens"])
    )


def ask_each(server, prompts):
    server.flush_cache()
    return [ask(server, prompt) for prompt in prompts]


def right_drafts(answers):
    return [answer.right_drafts for answer in answers]


@pytest.fixture(scope="module")
def prompts(tokens):
    return slices(tokens, LENGTHS)


@pytest.fixture(scope="module")
def plain(reference_of, prompts):
    """Tokens of plain SGLang: tp 1, CP off, no speculation."""
    server = reference_of(*MODEL).server
    return [
        tuple(server.generate(input_ids=list(prompt), sampling_params=greedy(NEW_TOKENS))["output_ids"])
        for prompt in prompts
    ]


@pytest.fixture(scope="module")
def fault_file(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("draft-faults") / "planted"


@pytest.fixture(scope="module")
def server(plain, fault_file, checkpoint, logs):
    arm = Arm("tp2-nextn", 2, "sharded", min_tokens=MIN_TOKENS, shard_source="symmetric-memory", drafts=True)
    spec = with_plugin(
        arm.spec(checkpoint(MODEL[0]), MODEL[1]),
        speculative_faults,
        fault_file.parent / "site",
        **{speculative_faults.FILE: str(fault_file)},
    )
    with running(spec, logs) as running_server:
        yield running_server


@pytest.fixture(scope="module")
def plain_tp(server, fault_file, prompts):
    """What the same server answers when no extend is dealt out."""
    fault_file.write_text(speculative_faults.PLAIN_TP)
    answers = ask_each(server, prompts)
    fault_file.write_text("")
    assert server.cp_counters()["cp_extends"] == 0
    return answers


def test_many_drafts_are_right(plain_tp, plain):
    """What the other tests compare is there: right drafts and wrong ones, several right in a row."""
    assert [answer.tokens for answer in plain_tp] == plain
    of_each_count = [sum(counts) for counts in zip(*(pad(answer.right_drafts) for answer in plain_tp), strict=True)]
    assert of_each_count[0] > 5
    assert of_each_count[1] > 5
    assert sum(of_each_count[2:]) > 5


def pad(histogram, width=6):
    return (*histogram, *[0] * (width - len(histogram)))


def test_drafts_after_a_cp_extend(server, plain_tp, prompts):
    before = server.cp_counters()["cp_rows"]
    assert ask_each(server, prompts) == plain_tp
    dealt_out = [length - length % 128 * (length % 128 < MIN_TOKENS) for length in LENGTHS]
    assert server.cp_counters()["cp_rows"] - before == sum(dealt_out)


def test_drafts_after_a_cached_prefix(server, plain_tp, prompts):
    server.flush_cache()
    for prompt in prompts[-4:]:
        server.generate(input_ids=prompt[:-20], sampling_params=greedy(1))
    answers = [ask(server, prompt) for prompt in prompts[-4:]]
    assert answers == plain_tp[-4:]
    assert all(answer.cached_tokens > 0 for answer in answers)


def test_drafts_of_concurrent_requests(server, plain_tp, prompts):
    server.flush_cache()
    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(lambda prompt: ask(server, prompt), prompts)) == plain_tp


@pytest.mark.parametrize("fault", speculative_faults.FAULTS)
def test_drafts_show_a_fault_that_tokens_hide(fault, server, plain_tp, prompts, fault_file):
    fault_file.write_text(fault)
    try:
        answers = ask_each(server, prompts)  # one by one: where chunks end decides whether a fault shows
    finally:
        fault_file.write_text("")
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in plain_tp]
    assert right_drafts(answers) != right_drafts(plain_tp)


def test_memory_counts_the_draft_model(server):
    """The NextN layer, but neither the embedding nor the output head, which it shares."""
    memory = server.info()["internal_states"][0]["sglang_cp_memory"]
    assert 0 < memory["draft_weight_bytes"] < memory["weight_bytes"] / 2


def test_replicated_drafts_alike(plain, plain_tp, checkpoint, logs, prompts):
    arm = Arm("tp2-replicated-nextn", 2, "replicated", drafts=True)
    with running(arm.spec(checkpoint(MODEL[0]), MODEL[1]), logs) as server:
        before = server.cp_counters()["cp_rows"]
        assert ask_each(server, prompts) == plain_tp
        # All but a chunk of one token; the draft model's extends are not counted as well.
        assert server.cp_counters()["cp_rows"] - before == sum(LENGTHS) - 1
