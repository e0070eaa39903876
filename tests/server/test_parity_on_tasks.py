"""Both accuracy evaluations, end to end on one pair of real servers: CP off and on answer identically."""

import json

import pytest
import typer
from typer.testing import CliRunner

from evals import gsm8k, retrieval
from evals.arms import Arm
from evals.server import running
from tests.evals import questions

CANDIDATE = Arm("accuracy", 2, "sharded", chunk=512)
SMALL_SAMPLE = ["--margin", "0.7", "--concurrency", "4"]


@pytest.fixture(scope="module")
def arms(reference_of, checkpoint, logs) -> list[str]:
    """--baseline and --candidate with their URLs."""
    baseline = reference_of("glm", "float32").server
    with running(CANDIDATE.spec(checkpoint("glm"), "float32"), logs) as candidate:
        yield ["--baseline", baseline.url, "--candidate", candidate.url]


def report_of(command, arguments, output) -> dict:
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, [*arguments, *SMALL_SAMPLE, "--output", str(output)])
    assert result.exit_code == 0, result.output
    return json.loads(output.read_text())


def test_gsm8k(arms, tmp_path):
    arguments = ["--data", str(questions.write(tmp_path)), "--shots", "2", "--limit", "3", "--answer-tokens", "8"]
    report = report_of(gsm8k.main, [*arms, *arguments], tmp_path / "gsm8k.json")
    assert report["same_answers"] == {"2-shot": 3}
    assert report["index_topk"] == 32
    part = report["participation"]["candidate"]["2-shot"]
    assert part["share_over_topk"] == 1.0
    assert part["counters"]["cp_rows_over_topk"] > 3 * 300


def test_retrieval(arms, tmp_path):
    plot = tmp_path / "heat.png"
    arguments = ["--lengths", "512,1024", "--depths", "10,90", "--samples", "1", "--plot", str(plot)]
    report = report_of(retrieval.main, [*arms, *arguments], tmp_path / "retrieval.json")
    assert report["answers"]["baseline"] == report["answers"]["candidate"]
    parts = report["participation"]["candidate"]
    # All but what the radix cache holds of the opening, which the prompts of a length share.
    assert 2 * 512 - 128 <= parts["512 tokens"]["counters"]["cp_rows"] <= 2 * 512
    assert 2 * 1024 - 128 <= parts["1,024 tokens"]["counters"]["cp_rows"] <= 2 * 1024
    assert plot.read_bytes().startswith(b"\x89PNG")
