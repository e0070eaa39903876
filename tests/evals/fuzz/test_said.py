"""What counts as a difference: the whole answer, or how it begins where the request was called off."""

import math
from dataclasses import replace

import pytest

from evals.fuzz.said import Compared, Outcome, Said, judge
from evals.fuzz.streams import Abort
from tests.evals.fuzz.examples import request, said

EXPECTED = said(65, 66, 67)
ABORTED = {"abort": Abort(after_tokens=1), "stream": True}


def found(outcome, **options):
    return judge(request(**options), EXPECTED, outcome, 1e-5, Compared())


def answered(**changes):
    return Outcome((said(65, 66, 67, **changes),))


def test_the_same_answer_agrees_and_is_counted():
    compared = Compared()
    options = {"logprobs": "input", "top_logprobs": 3}
    assert judge(request(**options), EXPECTED, answered(), 1e-5, compared) == []
    # 3 output and 3 input logprobs (the first token has none), and 3 top ones for each.
    assert compared == Compared(tokens=3, logprobs=24, max_gap=0.0)


def test_small_gaps_are_measured():
    compared = Compared()
    assert judge(request(), EXPECTED, answered(output_logprobs=(0.0, -0.5, -1.0 + 2e-6)), 1e-5, compared) == []
    assert compared.max_gap == pytest.approx(2e-6)


@pytest.mark.parametrize(
    ("outcome", "options", "sentence"),
    [
        (Outcome((said(65, 99, 67),)), {}, "output token 1 is 99, not 66"),
        (Outcome((said(65, 66),)), {}, "2 output tokens, not 3"),
        (Outcome((said(65, 66, 67, 68),)), {}, "4 output tokens, not 3"),
        (answered(finish="stop: 67"), {}, "finish is 'stop: 67', not 'length'"),
        (answered(text="AB"), {}, "text is 'AB', not 'ABC'"),
        (answered(prompt_tokens=5), {}, "prompt_tokens is 5, not 4"),
        (answered(finish=""), {}, "the answer ended with no finish reason after 3 tokens"),
        (answered(finish="abort"), {}, "the answer ended with abort finish reason after 3 tokens"),
        (answered(output_logprobs=(0.0, -0.5)), {}, "2 output logprobs, not 3"),
        (answered(output_logprobs=(0.0, -0.5001, -1.0)), {}, "the output logprob at position 1 is off by 1.0e-04 nats"),
        (answered(output_logprobs=(0.0, math.nan, -1.0)), {}, "the output logprob at position 1 is off by nan nats"),
        (answered(output_logprobs=(0.0, None, -1.0)), {}, "the output logprob at position 1 is None, not -0.5"),
        (
            answered(input_logprobs=(None, -1.0, -2.1, -3.0)),
            {"logprobs": "input"},
            "the input logprob at position 2 is off by 1.0e-01 nats",
        ),
        (
            answered(top_output=(((-0.1, 7), (-0.21, 8)),) * 3),
            {"top_logprobs": 2},
            "the top output 0 logprob at position 1 is off by 1.0e-02 nats",
        ),
        (Outcome(), {}, "0 answers came for n = 1"),
        (answered(), {"n": 2}, "1 answers came for n = 2"),
        (Outcome(error="status 500: gone"), {}, "it was not answered: status 500: gone"),
        (Outcome(error="status 500: gone"), ABORTED, "it was not answered: status 500: gone"),
        (Outcome(error="status 400: Abort"), {}, "it was not answered: status 400: Abort"),
        (Outcome((said(99, finish="abort"),)), ABORTED, "output token 0 is 99, not 65"),
        (Outcome((said(65, 66, finish="length"),)), ABORTED, "2 output tokens, not 3"),
        (Outcome((said(65, finish="", output_logprobs=(-1.0,)),)), ABORTED, "the output logprob at position 0 is off"),
    ],
)
def test_a_difference_is_a_sentence(outcome, options, sentence):
    assert len(found(outcome, **options)) == 1
    assert found(outcome, **options)[0].startswith(sentence)


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(),
        Outcome(error="status 503: Abort in waiting queue"),
        Outcome((said(65, finish="abort"),)),
        Outcome((said(65, 66, finish=""),)),
        Outcome((said(finish="abort", text=""),)),
        answered(),
    ],
)
def test_an_aborted_request_says_how_the_answer_begins(outcome):
    assert found(outcome, **ABORTED) == []


def test_input_logprobs_are_those_from_the_start_that_was_asked_for():
    options = {"logprobs": "input", "logprob_start": 2}
    assert found(answered(input_logprobs=(-2.0, -3.0)), **options) == []
    assert found(answered(input_logprobs=(None, -3.0)), **options) == []
    assert found(answered(input_logprobs=(-1.0, -2.0)), **options) != []
    assert found(answered(input_logprobs=(-3.0,)), **options) == ["1 input logprobs, not 2"]


def test_the_first_position_asked_for_has_no_top_logprobs():
    options = {"logprobs": "input", "logprob_start": 2, "top_logprobs": 2}
    top = ((-0.1, 7), (-0.2, 8))
    answers = {"input_logprobs": (None, -3.0), "top_output": (top,) * 3}
    assert found(answered(**answers, top_input=((), top)), **options) == []
    assert found(answered(**answers, top_input=(top, ())), **options) != []
    assert found(answered(**answers, top_input=(top,)), **options) != []


def test_logprobs_that_were_not_asked_for_are_not_missed():
    assert found(answered(output_logprobs=(), input_logprobs=()), logprobs="none") == []


def test_from_the_answer_to_a_request_that_was_called_off_while_it_waited():
    reason = {"type": "abort", "message": "Abort in waiting queue"}
    answered = Said.from_response({"text": "", "meta_info": {"id": "a", "finish_reason": reason}})
    assert found(Outcome((answered,)), **ABORTED) == []
    assert found(Outcome((answered,))) == ["the answer ended with abort finish reason after 0 tokens"]


def test_the_last_token_of_a_retracted_request_that_was_called_off_is_not_its_first():
    meta = {"finish_reason": {"type": "abort"}, "completion_tokens": 3, "output_token_logprobs": [[0.0, 65, None]] * 3}
    answered = Said.from_response({"text": "ABC", "output_ids": [67], "meta_info": meta})
    assert found(Outcome((answered,)), **ABORTED) == []


def test_retractions_are_counted():
    compared = Compared()
    judge(request(), EXPECTED, Outcome((replace(EXPECTED, retractions=2),)), 1e-5, compared)
    assert compared.retractions == 2
    assert Said.from_response({"meta_info": {"finish_reason": None, "num_retractions": 3}}).retractions == 3


def test_from_a_response():
    response = {
        "output_ids": [65],
        "text": "A",
        "meta_info": {
            "finish_reason": {"type": "stop", "matched": 65},
            "prompt_tokens": 4,
            "output_token_logprobs": [[-0.5, 65, None]],
            "input_token_logprobs": [[None, 1, None], [-1.0, 2, None]],
            "input_top_logprobs": [None, [[-0.1, 7, None]]],
            "output_top_logprobs": [[[-0.1, 7, None]]],
        },
    }
    expected = Said((65,), "A", "stop: 65", 4, (-0.5,), (None, -1.0), ((), ((-0.1, 7),)), (((-0.1, 7),),))
    assert Said.from_response(response) == expected
