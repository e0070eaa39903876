"""A small model that learned to look values up: CP recalls what plain SGLang does, and a top-k fault costs recall."""

from pathlib import Path

import pytest
import torch

from evals import recall
from evals.arms import Arm
from evals.plugins import with_plugin
from evals.recall_model import write_checkpoint
from evals.recall_training import train
from evals.server import running
from evals.train_recall import RECIPES
from tests.evals.accuracy_cli import run
from tests.server import topk_fault

MODEL = "recall"
ASKED = ["--lengths", "127,256", "--samples", "16", "--letters", "16", "--least-recall", "0.8"]
"""The last row of a prompt is rank 0's, then rank 1's."""


@pytest.fixture(scope="module")
def trained(checkpoint) -> Path:
    """The quick recipe's checkpoint, beside the random ones so that `reference_of` serves it by its name."""
    torch.set_num_threads(1)
    directory = checkpoint("glm").with_name(MODEL)
    write_checkpoint(
        train(RECIPES["quick"], torch.device("cpu"), 0, lambda point: None), RECIPES["quick"].config, directory
    )
    return directory


@pytest.fixture(scope="module")
def fault_file(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("topk-fault") / "planted"


@pytest.fixture(scope="module")
def arms(trained, reference_of, fault_file, logs):
    """--baseline and --candidate with their URLs; the candidate deals every extend out, and can be given the fault."""
    baseline = reference_of(MODEL, "float32").server
    spec = Arm("recall", 2, "sharded").spec(trained, "float32")
    spec = with_plugin(spec, topk_fault, fault_file.parent / "site", **{topk_fault.FILE: str(fault_file)})
    with running(spec, logs) as candidate:
        yield ["--baseline", baseline.url, "--candidate", candidate.url]


def test_cp_gives_the_same_answers_and_they_are_right(arms, tmp_path):
    outcome = run(recall.main, [*arms, *ASKED], tmp_path)
    assert outcome.exit_code == 0, outcome.said
    assert outcome.report["index_topk"] == 16
    assert outcome.report["answers"]["baseline"] == outcome.report["answers"]["candidate"]


def test_a_top_k_fault_on_one_rank_costs_recall(arms, fault_file, tmp_path):
    fault_file.touch()
    outcome = run(recall.main, [*arms, *ASKED], tmp_path)
    fault_file.unlink()
    assert outcome.exit_code == 1
    shares = outcome.report["recall"]
    for length in ("127", "256"):
        assert shares["candidate"][length] < shares["baseline"][length] - 0.3, shares
        assert f"{length} tokens: the arms give other answers" in outcome.said
