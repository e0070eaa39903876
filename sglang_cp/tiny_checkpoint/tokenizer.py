"""A byte-level tokenizer: a token's id is its byte.

Text round-trips exactly and costs one token per UTF-8 byte, so a prompt's length is known beforehand. A special
token spelled out in a text (`<|user|>`) is that one token, as in any chat tokenizer.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from sglang_cp.tiny_checkpoint.vocabulary import BOS_TOKEN, EOS_TOKEN, PAD_TOKEN, SPECIAL_TOKENS

# Each message is its role's token and its text; a turn of the assistant ends with the end-of-text token.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}"
    "{% if message.role == 'assistant' %}<|endoftext|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_characters() -> list[str]:
    """The character by which byte-level BPE spells each byte, indexed by the byte (GPT-2's table).

    A printable Latin-1 byte stands for itself; the others take code points from 256 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def build_tokenizer() -> Tokenizer:
    """The tokenizer as a `tokenizers.Tokenizer`: byte-level BPE without merges."""
    vocabulary = {character: byte for byte, character in enumerate(byte_characters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS]
    tokenizer.add_special_tokens(special)
    return tokenizer


def write_tokenizer(directory: Path, max_positions: int) -> None:
    """Writes tokenizer.json and tokenizer_config.json, which `AutoTokenizer` loads without a network.

    `max_positions` is the longest context in tokens, which the tokenizer reports as its own limit.
    """
    build_tokenizer().save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS_TOKEN,
        "pad_token": PAD_TOKEN,
        "bos_token": BOS_TOKEN,
        "add_bos_token": False,
        "add_eos_token": False,
        # Cleaning up would drop spaces before punctuation: the text would not round-trip.
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_positions,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
