"""One sentence for each of the post's cases."""

import pytest

from sglang_cp.planner.advice import advise
from sglang_cp.planner.system import Workload
from tests.planner.sets import H200, MI355X, published, system


@pytest.mark.parametrize(
    ("name", "workload", "sentence"),
    [
        (
            MI355X,
            Workload(40960, 512, 16),
            "Turn CP on with --enable-prefill-cp --cp-strategy interleave --cp-min-tokens",
        ),
        (MI355X, Workload(1024, 512, 16), "CP does not pay for these prompts: leave it off, or on auto"),
        (MI355X, Workload(16384, 4096, 1), "if the first token matters: a first token 1.3x sooner and +1% total"),
        (H200, Workload(4096, 33, 1), "CP makes no difference beyond the noise of 5% here: leave it off, or on auto"),
    ],
)
def test_advice(name, workload, sentence):
    advice = advise(system(name), workload, published(name).noise)
    assert sentence in advice
    assert advice.endswith(".")
    assert "SGLang's own CP is predicted to change it by" in advice
