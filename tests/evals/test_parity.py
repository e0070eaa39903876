"""What the parity harness calls a problem."""

import math

import pytest
from typer.testing import CliRunner

from evals import parity
from evals.checks import CheckResult
from evals.parity import judge

AGREES = CheckResult("single", 3, (), 1e-7)
TOOK_PART = {"cp_extends": 2, "cp_rows": 9, "cp_rows_over_topk": 4, "cp_local_rows": 5}
NO_CP = dict.fromkeys(TOOK_PART, 0)


def problems(check=AGREES, counters=TOOK_PART, *, expect_cp=True):
    return judge("arm", [check], counters, expect_cp=expect_cp, tolerance=1e-4).problems


def test_agreement_with_cp_is_no_problem():
    assert problems() == []
    assert problems(counters=NO_CP, expect_cp=False) == []


@pytest.mark.parametrize(
    ("check", "counters", "expect_cp", "sentence"),
    [
        (
            CheckResult("batch", 3, (65,), 0.0),
            TOOK_PART,
            True,
            "batch: greedy tokens differ for prompts of [65] tokens.",
        ),
        (CheckResult("single", 3, (), 2e-4), TOOK_PART, True, "single: a logprob differs by 2.0e-04 > 1e-04 nats."),
        (CheckResult("single", 3, (), math.nan), TOOK_PART, True, "single: a logprob differs by nan > 1e-04 nats."),
        (AGREES, NO_CP, True, "No extend was dealt out: CP did not take part."),
        (AGREES, {**TOOK_PART, "cp_rows_over_topk": 0}, True, "Top-k dropped no key"),
        (AGREES, TOOK_PART, False, "CP is off, yet extends were dealt out."),
    ],
)
def test_problems_are_sentences(check, counters, expect_cp, sentence):
    assert any(problem.startswith(sentence) for problem in problems(check, counters, expect_cp=expect_cp))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--mode", "fast"], "--mode fast is not known: use exact, faithful or both."),
        (["--arm", "tp3"], "--arm tp3 is not known: use one of tp2-off"),
        (["--reference", "http://127.0.0.1:1"], "--reference and --candidate go together"),
        (["--model", "/nowhere"], "/nowhere holds no model (no config.json)."),
        (["--tolerance", "-1"], "--tolerance -1.0 is not a difference"),
        (["--output", "/nowhere/figures.json"], "/nowhere is not a directory"),
        (["--reference", "http://127.0.0.1:1", "--candidate", "http://127.0.0.1:1"], "does not answer /server_info"),
    ],
)
def test_bad_input_is_refused_before_a_server_starts(arguments, sentence):
    import typer

    app = typer.Typer()
    app.command()(parity.main)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert sentence in " ".join(result.output.split())


def test_arms_draft_only_with_a_model_that_can(tmp_path):
    (tmp_path / "config.json").write_text('{"num_nextn_predict_layers": 0}')
    test_bad_input_is_refused_before_a_server_starts(
        ["--model", str(tmp_path), "--speculative"], "--speculative needs a NextN layer, which"
    )
