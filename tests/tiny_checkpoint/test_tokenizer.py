"""The byte-level tokenizer, as AutoTokenizer loads it."""

import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.decoders import DecodeStream
from transformers import AutoTokenizer

from sglang_cp.tiny_checkpoint import TinyConfig, write_tiny_checkpoint
from sglang_cp.tiny_checkpoint.tokenizer import build_tokenizer
from sglang_cp.tiny_checkpoint.vocabulary import BOS_ID, EOS_ID, PAD_ID, SPECIAL_TOKENS, VOCAB_SIZE

TOKENIZER = build_tokenizer()
plain_texts = st.text().filter(lambda text: not any(token in text for token in SPECIAL_TOKENS))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tokenizer") / "tiny"
    write_tiny_checkpoint(directory, TinyConfig(layers=1))
    return directory


@given(plain_texts)
def test_every_text_is_its_utf8_bytes_and_comes_back(text: str) -> None:
    ids = TOKENIZER.encode(text).ids
    assert bytes(ids) == text.encode()
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


@given(plain_texts)
def test_streamed_text_equals_the_text(text: str) -> None:
    stream = DecodeStream(skip_special_tokens=True)
    pieces = [stream.step(TOKENIZER, token) for token in TOKENIZER.encode(text).ids]
    assert "".join(piece for piece in pieces if piece is not None) == text


def test_every_byte_has_its_own_token() -> None:
    assert sorted(TOKENIZER.get_vocab().values()) == list(range(256 + len(SPECIAL_TOKENS)))
    assert TOKENIZER.get_vocab_size() <= VOCAB_SIZE


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "  two  spaces , before punctuation .",
        "it 's n't",
        "\n\t\r\x00\x7f",
        "e\u0301 \u00e9 👩‍👩‍👧 \ufeff\ufffd",
    ],
)
def test_auto_tokenizer_round_trips(checkpoint: Path, text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    ids = tokenizer.encode(text)
    assert bytes(ids) == text.encode()
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_auto_tokenizer_loads_silently_with_our_special_tokens(
    checkpoint: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    assert not caplog.records
    assert capfd.readouterr().err == ""
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id) == (EOS_ID, PAD_ID, BOS_ID)
    assert tokenizer.model_max_length == TinyConfig().max_positions


def test_chat_template(checkpoint: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "Bye"},
    ]
    prompt = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert prompt == "<|system|>Be brief.<|user|>Hi<|assistant|>Yes?<|endoftext|><|user|>Bye<|assistant|>"
    # Each role is one token, so a reply's length is predictable too.
    assert len(tokenizer.encode(prompt)) == len("Be brief.HiYes?Bye") + 6
