"""A prefill server of prefill-decode disaggregation deals its extends out."""

from dataclasses import replace

from evals.arms import Arm
from evals.checks import greedy
from evals.plugins import with_plugin
from evals.prompts import slices
from evals.server import running
from tests.server.test_serving import no_transfer
from tests.server.test_serving.pair import Counting

FLAGS = ("--disaggregation-mode", "prefill", "--disaggregation-transfer-backend", "nixl")


def test_a_prefill_server(reference_of, checkpoint, tokens, logs, tmp_path):
    prompts = slices(tokens, (300, 700, 5))
    reference = reference_of("glm", "float32").server
    spec = Arm("serving-prefill", 2, "sharded", min_tokens=200, chunk=512).spec(checkpoint("glm"), "float32")
    spec = with_plugin(replace(spec, args=(*spec.args, *FLAGS)), no_transfer, tmp_path)
    with running(spec, logs) as server:
        extends = Counting(server)
        ask = {"input_ids": prompts, "sampling_params": greedy(1), "return_logprob": True}
        answers = server.generate(**ask, bootstrap_room=[1, 2, 3])
        assert extends().cp_rows >= 800
    for answer, theirs in zip(answers, reference.generate(**ask), strict=True):
        assert answer["output_ids"] == theirs["output_ids"]
