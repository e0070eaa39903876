"""Recall through fake servers: what is asked, what is right, that arms must agree exactly, and what is refused."""

import pytest

from evals import recall
from tests.evals.accuracy_cli import run
from tests.evals.fake_sglang import FakeSGLang

SMALL = ["--lengths", "300,127", "--samples", "6", "--letters", "16", "--index-topk", "100"]


def look_up(prompt):
    """The value of the last key."""
    text = prompt.lstrip("\n")
    return {text[at : at + 2]: text[at + 2 : at + 4] for at in range(0, len(text) - 2, 4)}[text[-2:]]


def forgets_the_early(prompt):
    value = look_up(prompt)
    return "??" if prompt.index(prompt[-2:] + value) < len(prompt) / 2 else value


def evaluate(folder, *arms, extra=()):
    urls = [part for arm in arms for part in ("--candidate" if arm._cp else "--baseline", arm.url)]
    return run(recall.main, [*urls, *SMALL, *extra], folder)


def test_equal_arms_of_which_one_has_cp(tmp_path):
    with FakeSGLang(cp=False, answer=look_up) as off, FakeSGLang(cp=True, answer=look_up) as on:
        outcome = evaluate(tmp_path, off, on)
    assert outcome.exit_code == 0, outcome.said
    assert sorted(off.prompts) == sorted(on.prompts)
    assert sorted(len(prompt) for prompt in on.prompts) == [127] * 6 + [300] * 6
    assert len(set(on.prompts)) == 12
    assert outcome.report["recall"] == {arm: {"127": 1, "300": 1} for arm in ("baseline", "candidate")}
    assert outcome.report["answers"]["candidate"] == outcome.report["expected"]
    assert outcome.report["index_topk"] == 100
    assert outcome.report["participation"]["candidate"]["300 tokens"]["counters"]["cp_rows"] == 6 * 300


def test_low_recall_is_a_problem_of_one_arm_too(tmp_path):
    with FakeSGLang(cp=True, answer=forgets_the_early) as on:
        outcome = evaluate(tmp_path, on)
    assert outcome.exit_code == 1
    share = outcome.report["recall"]["candidate"]["300"]
    assert 0 < share < 1
    assert f"300 tokens: candidate recalls {share:.1%}, less than 95%" in outcome.said


def test_one_other_answer_is_a_problem_though_recall_is_high(tmp_path):
    seen = []

    def wrong_once(prompt):
        seen.append(prompt)
        return "!!" if len(seen) == 1 else look_up(prompt)

    with FakeSGLang(cp=False, answer=look_up) as off, FakeSGLang(cp=True, answer=wrong_once) as on:
        outcome = evaluate(tmp_path, off, on, extra=["--least-recall", "0.5"])
    assert outcome.exit_code == 1
    assert outcome.report["problems"] == ["127 tokens: the arms give other answers to 1 of 6 prompts."]


def test_cp_must_take_part(tmp_path):
    with FakeSGLang(cp=True, counts=False, answer=look_up) as on:
        outcome = evaluate(tmp_path, on)
    assert outcome.exit_code == 1
    assert "127 tokens: no extend was dealt out: CP did not take part." in outcome.said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--lengths", "5"], "--lengths 5 is not understood: give whole numbers of at least 6"),
        (
            ["--lengths", "2000"],
            "2000 tokens make no recall task: they hold 499 records, but 16 letters make 256 keys.",
        ),
        (["--letters", "60"], "60 letters make no alphabet of keys: give 2 to 52."),
        (["--least-recall", "1.5"], "--least-recall 1.5 is not a share"),
        (["--lengths", "1000"], "candidate takes prompts of up to 493 tokens with 2 of answer"),
    ],
)
def test_refusals(arguments, sentence, tmp_path):
    with FakeSGLang(cp=True, answer=look_up, context=500) as on:
        outcome = evaluate(tmp_path, on, extra=arguments)
    assert outcome.exit_code == 2
    assert sentence in outcome.said
    assert not on.prompts
    assert outcome.report is None
