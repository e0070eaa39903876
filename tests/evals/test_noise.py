"""A candidate may differ from plain TP as plain TP differs from itself, and no more."""

import math
from dataclasses import replace

import pytest

from evals.answers import Answer
from evals.noise import FLOOR_NATS, Noise, problems

QUIET = Noise(prompts=10, same_answers=10, same_tokens=1.0, mean_nats=0.0, p99_nats=0.0, max_nats=0.0)
NOISY = Noise(prompts=10, same_answers=6, same_tokens=0.7, mean_nats=0.1, p99_nats=1.0, max_nats=4.0)


def answer(tokens: tuple[int, ...], logprobs: tuple[float, ...]) -> Answer:
    return Answer(tokens, tuple(0.0 for _ in tokens), logprobs)


def test_noise_counts_tokens_before_the_first_that_differs_and_all_input_logprobs() -> None:
    first = [answer((1, 2, 3, 4), (-1.0, -2.0)), answer((5, 6), (-1.0,))]
    second = [answer((1, 9, 3, 4), (-1.0, -2.5)), answer((5, 6), (-1.25,))]

    noise = Noise.between(first, second)

    assert (noise.prompts, noise.same_answers) == (2, 1)
    assert noise.same_tokens == 3 / 6
    assert noise.mean_nats == pytest.approx(0.25)
    assert noise.max_nats == 0.5
    assert 0.25 < noise.p99_nats <= 0.5


def test_answers_of_different_lengths_are_no_comparison() -> None:
    with pytest.raises(ValueError, match=r"shorter|longer"):
        Noise.between([answer((1,), ())], [answer((1, 2), ())])


def test_as_much_as_plain_tp_differs_from_itself_is_no_problem() -> None:
    assert problems("cp", [NOISY], NOISY) == []
    assert problems("cp", [QUIET], replace(QUIET, mean_nats=FLOOR_NATS, p99_nats=FLOOR_NATS)) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"mean_nats": 0.13}, "mean"),
        ({"p99_nats": 1.3}, "99th"),
        ({"mean_nats": math.nan}, "mean"),
        ({"same_answers": 1}, "answers"),
    ],
)
def test_more_than_plain_tp_does_is_a_problem(change: dict[str, float], word: str) -> None:
    (problem,) = problems("cp", [NOISY], replace(NOISY, **change))

    assert word in problem
    assert problem.startswith("cp: ")


def test_the_noisier_of_two_baselines_bounds_logprobs_and_the_less_agreeing_one_the_answers() -> None:
    itself = replace(NOISY, mean_nats=0.05, same_answers=9)
    tp1 = replace(NOISY, p99_nats=0.2)

    assert problems("cp", [itself, tp1], NOISY) == []


def test_one_different_answer_is_let_pass_where_plain_tp_always_agrees_two_are_not() -> None:
    assert problems("cp", [QUIET], replace(QUIET, same_answers=9)) == []
    assert problems("cp", [QUIET], replace(QUIET, same_answers=8))
