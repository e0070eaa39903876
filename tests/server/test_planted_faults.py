"""A server whose weights were replaced while it served, with faults planted in it one by one.

Without a fault it answers as plain SGLang with the new weights: no rank pulls a stale shard. The parity harness sees
every fault, and ranks that decide differently end with a sentence in place of a hang.
"""

from pathlib import Path

import pytest

from evals.arms import Arm
from evals.checks import MAX_LOGPROB_NATS, greedy, single
from evals.fuzz.bench import check
from evals.fuzz.reference import Reference
from evals.parity import judge
from evals.plugins import with_plugin
from evals.prompts import slices
from evals.server import ServerError, running
from sglang_cp import agreement
from tests.server import planted_faults
from tests.server.conftest import MODELS
from tests.server.fuzz_faults import find

LENGTHS = (7, 65, 300)


@pytest.fixture(scope="module")
def fault_file(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("faults") / "planted"


@pytest.fixture(scope="module")
def server(fault_file, checkpoint, logs):
    """Starts with other weights, has used them, and was then given the reference's."""
    spec = Arm("planted-faults", 2, "sharded", shard_source="symmetric-memory").spec(checkpoint("glm-other"), "float32")
    env = {planted_faults.FILE: str(fault_file), agreement.VARIABLE: "1"}
    spec = with_plugin(spec, planted_faults, fault_file.parent / "site", **env)
    with running(spec, logs) as running_server:
        running_server.generate(input_ids=list(range(5, 105)), sampling_params=greedy(1))
        running_server.update_weights(checkpoint("glm"))
        yield running_server


@pytest.mark.parametrize("fault", ["", *planted_faults.FAULTS])
def test_harness_sees_the_fault(fault, reference_of, server, fault_file, tokens):
    reference = reference_of("glm", "float32")
    fault_file.write_text(fault)
    checks = [single(reference, server, slices(tokens, LENGTHS), on=lambda *_: None)]
    result = judge("planted", checks, server.cp_counters(), expect_cp=True, tolerance=MAX_LOGPROB_NATS)
    assert bool(result.problems) == bool(fault), result


def test_fuzzer_finds_a_fault_and_makes_it_small(reference_of, server, fault_file):
    reference = Reference(reference_of("glm", "float32").server.url)
    fault_file.write_text("ke one too small on one rank")
    found = find(server, reference)
    fault_file.write_text("")
    assert found is not None
    (request,) = found.smallest.requests
    # One key too few shows as soon as top-k has something to drop.
    index_topk = MODELS["glm"].index_topk
    assert index_topk < request.prompt_tokens <= index_topk + 4
    assert check(server, reference.prepare(found.smallest)).found == []


def test_ranks_that_decide_differently_end_the_server(server, fault_file, logs):
    fault_file.write_text(planted_faults.DISAGREEMENT)
    with pytest.raises(ServerError):
        server.generate(input_ids=list(range(5, 105)), sampling_params=greedy(1))
    (log,) = logs.glob("planted-faults-*.log")
    assert (
        "The ranks decided differently about one extend and would wait for each other for ever: "
        "rank 0: CP (100 >= 2) for new tokens [100]; rank 1: plain TP (planted) for new tokens [100]"
    ) in log.read_text()
