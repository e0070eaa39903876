import pytest

from evals.answers import Answer, Difference, compare


def test_from_response_reads_logprobs_and_drops_the_first_input_token():
    response = {
        "output_ids": [7, 8],
        "meta_info": {
            "output_token_logprobs": [[-0.5, 7, None], [-0.25, 8, None]],
            "input_token_logprobs": [[None, 1, None], [-2.0, 2, None]],
            "cached_tokens": 3,
        },
    }
    assert Answer.from_response(response) == Answer((7, 8), (-0.5, -0.25), (-2.0,), 3)


def test_equal_answers_do_not_differ():
    answer = Answer((1, 2), (-1.0, -2.0), (-3.0,))
    assert compare(answer, answer) == Difference(None, 0.0)


def test_logprobs_after_the_first_differing_token_are_not_compared():
    reference = Answer((1, 2, 3), (-1.0, -2.0, -3.0))
    candidate = Answer((1, 9, 3), (-1.5, -9.0, -9.0))
    assert compare(reference, candidate) == Difference(1, 0.5)


def test_input_logprobs_count_also_when_tokens_differ():
    assert compare(Answer((1,), (-1.0,), (-2.0, -3.0)), Answer((2,), (-1.0,), (-2.0, -3.25))) == Difference(0, 0.25)


def test_answers_of_different_requests_are_refused():
    with pytest.raises(ValueError, match="1 and 2 tokens"):
        compare(Answer((1,), (-1.0,)), Answer((1, 2), (-1.0, -1.0)))
