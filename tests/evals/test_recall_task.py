"""The recall task: what is stored, what is asked, and where it stood."""

import numpy as np
import pytest

from evals.recall_task import FILLER, RECORD_TOKENS, RecallTask
from sglang_cp.errors import UsageError

TASK = RecallTask(letters=4)


def rng(seed=0):
    return np.random.default_rng(seed)


def records(tokens):
    """Keys and values of a prompt or sequence, as text, its filler dropped."""
    text = bytes(list(tokens)).decode().lstrip(chr(FILLER))
    return [(text[at : at + 2], text[at + 2 : at + 4]) for at in range(0, len(text), RECORD_TOKENS)]


@pytest.mark.parametrize("length", [32, 33, 35])
def test_every_asked_value_was_stored_under_its_key(length):
    batch = TASK.batch(rng(), length, 5)
    assert batch.tokens.shape == (5, length)
    for tokens in batch.tokens:
        stored, asked = records(tokens)[:4], records(tokens)[4:]
        assert len(dict(stored)) == len(asked) == 4
        assert all(dict(stored)[key] == value for key, value in asked)


@pytest.mark.parametrize("length", [32, 34])
def test_positions_are_those_of_the_values(length):
    batch = TASK.batch(rng(), length, 3)
    assert np.array_equal(np.take_along_axis(batch.tokens, batch.sources, 1), batch.tokens[:, batch.asked])
    keys = batch.tokens[:, batch.asked.reshape(-1, 2)[:, 0] - 1]
    assert np.array_equal(keys, np.take_along_axis(batch.tokens, batch.sources[:, ::2] - 1, 1))
    assert (batch.sources < batch.asked).all()
    assert set(batch.asked.tolist()) == {p for p in range(length) if (p - length) % 4 >= 2 and p >= length - 16}


def test_the_share_stored():
    assert len(RecallTask().batch(rng(), 400, 1, stored_share=0.9).asked) == 2 * 10


def test_sequences_and_questions_differ():
    batch = TASK.batch(rng(), 32, 8)
    assert len({tuple(tokens) for tokens in batch.tokens}) == 8
    assert TASK.question(rng(1), 30) != TASK.question(rng(2), 30) == TASK.question(rng(2), 30)


@pytest.mark.parametrize("length", [6, 29, 30, 31, 32, 66])
def test_a_question_has_its_length_and_one_answer(length):
    question = TASK.question(rng(), length)
    assert len(question.prompt) == length
    *stored, (key, nothing) = records(question.prompt)
    assert nothing == ""
    assert dict(stored)[key] == question.answer
    assert len(dict(stored)) == len(stored) == (length - 2) // 4


def test_any_record_may_be_asked():
    asked = [TASK.question(rng(seed), 30) for seed in range(60)]
    places = {[key for key, _ in records(q.prompt)[:-1]].index(records(q.prompt)[-1][0]) for q in asked}
    assert places == set(range(7))


def test_refusals():
    with pytest.raises(UsageError, match="5 tokens make no recall task"):
        TASK.question(rng(), 5)
    with pytest.raises(UsageError, match="they hold 17 records, but 4 letters make 16 keys"):
        TASK.question(rng(), 70)
    with pytest.raises(UsageError, match="53 letters"):
        RecallTask(letters=53)
