"""Key-value recall: sequences of records that a small model learns from, prompts that it is asked, and the score.

A record is a key of two letters and a value of two symbols, four bytes, each of them a token of the tiny checkpoint's
tokenizer. Some records are stored; a record whose key was stored before is asked: its value must be looked up. The
second token of an answer is decoded, so that prefill and decode are both heard. Pure.
"""

from __future__ import annotations

import string
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sglang_cp.errors import UsageError

KEY_TOKENS = 2
VALUE_TOKENS = 2
RECORD_TOKENS = KEY_TOKENS + VALUE_TOKENS
FILLER = ord("\n")
"""Fills a sequence up at its start, where its length holds no whole number of records."""

_LETTERS = np.frombuffer(string.ascii_letters.encode(), dtype=np.uint8).astype(np.int64)
_SYMBOLS = np.frombuffer((string.digits + string.punctuation).encode(), dtype=np.uint8).astype(np.int64)

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Sequences to learn from; all have the same layout.

    Attributes:
        tokens: token ids, int64 ``[sequences, length]``.
        asked: positions of the value tokens to predict, int64 ``[targets]``.
        sources: where each of them stood when it was stored, int64 ``[sequences, targets]``.
    """

    tokens: Ids
    asked: Ids
    sources: Ids


@dataclass(frozen=True)
class Question:
    """A prompt that ends with a stored key, as token ids, and the value that must follow, as text."""

    prompt: list[int]
    answer: str


@dataclass(frozen=True)
class RecallTask:
    """Recall over an alphabet of ``letters`` for keys, up to 52: ``letters ** 2`` different keys."""

    letters: int = len(_LETTERS)

    def __post_init__(self) -> None:
        if not 2 <= self.letters <= len(_LETTERS):
            raise UsageError(f"{self.letters} letters make no alphabet of keys: give 2 to {len(_LETTERS)}.")

    @property
    def keys(self) -> int:
        """How many different keys there are."""
        return self.letters * self.letters

    @property
    def chance(self) -> float:
        """Recall of a model that guesses among all values."""
        return float(len(_SYMBOLS)) ** -VALUE_TOKENS

    def batch(self, rng: np.random.Generator, length: int, sequences: int, stored_share: float = 0.5) -> Batch:
        """Sequences of ``length`` tokens, of whose records a share is stored and the rest asked, in random order."""
        records, filler = divmod(length, RECORD_TOKENS)
        stored = self._stored(max(1, int(records * stored_share)), length)
        keys, values = self._records(rng, sequences, stored)
        asked = rng.integers(0, stored, (sequences, records - stored))
        order = np.concatenate([np.broadcast_to(np.arange(stored), (sequences, stored)), asked], axis=1)
        tokens = np.concatenate([keys, values], axis=2)[np.arange(sequences)[:, None], order]
        value = filler + KEY_TOKENS + np.arange(VALUE_TOKENS)
        return Batch(
            tokens=_filled(tokens.reshape(sequences, -1), filler),
            asked=(RECORD_TOKENS * np.arange(stored, records)[:, None] + value).reshape(-1),
            sources=(RECORD_TOKENS * asked[:, :, None] + value).reshape(sequences, -1),
        )

    def question(self, rng: np.random.Generator, length: int) -> Question:
        """A prompt of exactly ``length`` tokens, all stored records but for the key that it asks at its end."""
        records, filler = divmod(length - KEY_TOKENS, RECORD_TOKENS)
        keys, values = self._records(rng, 1, self._stored(records, length))
        asked = rng.integers(0, records)
        prompt = np.concatenate([np.concatenate([keys, values], axis=2).reshape(1, -1), keys[:, asked]], axis=1)
        return Question(_filled(prompt, filler)[0].tolist(), bytes(values[0, asked].tolist()).decode())

    def _stored(self, records: int, length: int) -> int:
        if not 1 <= records <= self.keys:
            raise UsageError(
                f"{length} tokens make no recall task: they hold {records:,} records, but {self.letters} letters "
                f"make {self.keys:,} keys. Give at least {RECORD_TOKENS + KEY_TOKENS} tokens, or more letters."
            )
        return records

    def _records(self, rng: np.random.Generator, sequences: int, records: int) -> tuple[Ids, Ids]:
        """Distinct keys ``[sequences, records, 2]`` and any values ``[sequences, records, 2]``, as token ids."""
        keys = rng.permuted(np.broadcast_to(np.arange(self.keys), (sequences, self.keys)), axis=1)[:, :records]
        values = rng.integers(0, len(_SYMBOLS), (sequences, records, VALUE_TOKENS))
        return _LETTERS[np.stack(np.divmod(keys, self.letters), axis=-1)], _SYMBOLS[values]


def _filled(tokens: Ids, filler: int) -> Ids:
    return np.pad(tokens, ((0, 0), (filler, 0)), constant_values=FILLER)
