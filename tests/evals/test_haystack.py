"""Where needles lie, and when an answer is right."""

from dataclasses import replace

import pytest

from evals.haystack import INTRO, NAMES, assemble, plan
from sglang_cp.errors import UsageError

DEPTHS = [0, 50, 100]
TEXT = "".join(chr(ord("a") + index % 26) for index in range(1000))


def prompt(trial, depths=DEPTHS, text=TEXT):
    """Assembled with a token a character."""
    return "".join(assemble(trial, depths, text, INTRO, trial.needles, trial.question))


def test_the_prompt_has_exactly_its_length_and_needles_at_their_depths():
    trial = plan(3000, DEPTHS, 1, seed=0)[1]
    made = prompt(trial)
    assert len(made) == 3000
    assert made.startswith(INTRO + trial.needles[0])
    assert made.endswith(trial.needles[2] + trial.question)
    hay = 3000 - len(INTRO) - len(trial.question) - sum(map(len, trial.needles))
    before = made.index(trial.needles[1]) - len(INTRO) - len(trial.needles[0])
    assert before == round(hay / 2)
    assert trial.depth == 50
    assert trial.needles[1].endswith(f"is {trial.number}. ")


def test_a_short_text_is_repeated_from_its_start():
    trial = replace(plan(3000, [100], 1, seed=0)[0], start=0.999)
    hay = prompt(trial, [100])[len(INTRO) :][:1002]
    assert hay == TEXT[999] + TEXT + TEXT[0]


def test_the_same_seed_makes_the_same_trials_and_another_makes_others():
    trials = plan(3000, DEPTHS, 2, seed=0)
    assert trials == plan(3000, DEPTHS, 2, seed=0)
    assert [(trial.depth, trial.sample) for trial in trials] == [(d, s) for d in DEPTHS for s in (0, 1)]
    others = [*trials, *plan(4000, DEPTHS, 2, seed=0), *plan(3000, DEPTHS, 2, seed=1)]
    assert len({trial.number for trial in others}) == len(others)
    assert len({trial.start for trial in others}) == len(others)


def test_a_prompt_holds_no_name_twice():
    trial = plan(9000, range(0, 100, 5), 1, seed=0)[7]
    assert len(set(trial.needles)) == 20
    assert sum(f" {name} is " in "".join(trial.needles) for name in NAMES) == 20


@pytest.mark.parametrize(
    ("answer", "right"),
    [("4821937", True), (" 4821937. Next", True), (" 48219370", False), (" 482193", False), ("It is 4821937", False)],
)
def test_an_answer_is_right_if_it_is_exactly_the_number(answer, right):
    assert replace(plan(3000, DEPTHS, 1, 0)[0], number="4821937").is_right(answer) is right


def test_too_short_a_prompt_is_refused_with_the_length_that_would_do():
    trial = plan(300, DEPTHS, 1, seed=0)[0]
    with pytest.raises(UsageError, match="--lengths 300 is too short for 3 needles, which need") as refused:
        prompt(trial)
    needed = int(str(refused.value).split("need ")[1].split(" ")[0])
    assert len(prompt(replace(trial, length=needed))) == needed
    with pytest.raises(UsageError):
        prompt(replace(trial, length=needed - 1))
