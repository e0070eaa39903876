import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.fuzz.streams import Piece
from evals.fuzz.texts import piece_ids
from sglang_cp.tiny_checkpoint.vocabulary import GENERATED_IDS


@given(st.integers(0, 2**31), st.integers(1, 1200), st.integers(1, 1200))
def test_a_shorter_piece_of_a_seed_begins_a_longer_one(seed, one, other):
    texts = [piece_ids(Piece(seed=seed, tokens=tokens)) for tokens in (one, other)]
    assert [len(text) for text in texts] == [one, other]
    common = min(one, other)
    assert texts[0][:common] == texts[1][:common]
    assert set(texts[0]) <= set(GENERATED_IDS)


def test_texts_are_the_same_for_ever_and_seeds_differ():
    assert piece_ids(Piece(seed=5, tokens=6)) == (90, 102, 107, 121, 102, 119)
    assert piece_ids(Piece(seed=5, tokens=64)) != piece_ids(Piece(seed=6, tokens=64))


def test_a_period_repeats():
    text = piece_ids(Piece(seed=5, tokens=8, period=3))
    assert text == (*text[:3], *text[:3], *text[:2])


def test_what_the_reference_answers_is_not_known_here():
    with pytest.raises(ValueError, match="reference"):
        piece_ids(Piece(tokens=4))
