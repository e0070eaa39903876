"""Prompts for parity: slices of a real text, at lengths around every boundary that the layout has."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TEXT = Path(__file__).resolve().parent.parent / "LICENSE"
"""A real text that every checkout holds; about 11,000 characters."""

_FIRST_ID = 10  # below it are a tokenizer's special tokens

LENGTHS = (
    *(1, 2, 3, 4, 5, 8, 9),  # around the number of ranks
    *(31, 32, 33),  # around the tiny checkpoint's index_topk
    *(63, 64, 65, 127, 128, 129, 257),  # around a page and a small chunk
    *(601, 2500),
)
"""Prompt lengths in tokens."""

BATCH = (129, 1, 3, 400, 2, 64, 7, 300)
"""One batch: requests shorter than the number of ranks between longer ones."""

PREFIXES = (65, 100, 128, 257)
"""Cached prefixes in tokens: around page boundaries and inside a page. With EAGLE SGLang caches pairs of tokens, so
that a prefix of 64 tokens would be no whole page."""


def tokenize(model: str) -> list[int]:
    """Token ids of TEXT by the model's own tokenizer."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    ids: list[int] = tokenizer(TEXT.read_text(encoding="utf-8"), add_special_tokens=False)["input_ids"]
    return ids


def random_ids(lengths: Sequence[int], vocabulary: int, seed: int) -> list[list[int]]:
    """One prompt per length, of random token ids below ``vocabulary``; none begins as another does."""
    draw = random.Random(seed)
    return [[draw.randrange(_FIRST_ID, vocabulary) for _ in range(length)] for length in lengths]


def slices(tokens: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """One prompt per length, each from another place in the text so that none is a prefix of another."""
    prompts = []
    for number, length in enumerate(lengths):
        start = (number * 37) % max(1, len(tokens) - length)
        prompts.append(list(tokens[start : start + length]))
    return prompts
