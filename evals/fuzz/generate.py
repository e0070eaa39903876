"""Stream k of seed S: drawn around the boundaries of ranks, top-k, pages, chunks and thresholds; the same for ever."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from evals.fuzz.streams import Abort, Logprobs, Piece, Request, Stream, Wave
from sglang_cp.tiny_checkpoint.vocabulary import GENERATED_IDS

RANKS = (2, 4)
TOPK = 32
PAGE = 64
CHUNKS = (64, 128, 256, 512)
THRESHOLDS = (96, 256)
SMALL = (*RANKS, 8, TOPK, PAGE, THRESHOLDS[0], 128)
LARGE = (192, 256, 320, 384, 512, 576)
LONGEST = 1200
"""Prompts and answers together, in tokens."""

CROWDED_TOKENS = 96
"""By which answers are longer where the pool is to overflow: at least one page boundary is crossed."""

T = TypeVar("T")


class _Dice:
    """Draws from ``random()`` alone: the one method whose values Python promises for all releases."""

    def __init__(self, seed: int, index: int) -> None:
        self._random = random.Random(f"{seed}/{index}").random

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def whole(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return low + int(self._random() * (high - low + 1))

    def one(self, choices: Sequence[T]) -> T:
        return choices[self.whole(0, len(choices) - 1)]

    def weighted(self, choices: Sequence[tuple[T, float]]) -> T:
        left = self._random() * sum(weight for _, weight in choices)
        for choice, weight in choices:
            left -= weight
            if left < 0:
                return choice
        return choices[-1][0]


def generate(seed: int, index: int) -> Stream:
    """Stream ``index`` of ``seed``."""
    dice = _Dice(seed, index)
    prompts: list[tuple[Piece, ...]] = []
    waves = []
    # SGLang mixes prefill and decode in one batch only while no request of it asks for logprobs.
    logprobs = dice.chance(0.7)
    for number in range(dice.weighted(((1, 5), (2, 4), (3, 2)))):
        burst = dice.chance(0.5)
        requests = []
        for _ in range(dice.weighted(((1, 3), (2, 3), (3, 2), (4, 1), (7, 0.3)))):
            prompt = _prompt(dice, prompts)
            prompts.append(prompt)
            requests.append(_request(dice, prompt, 0 if burst else dice.whole(0, 250), logprobs))
        waves.append(Wave(requests=_comparable(requests), flush=number > 0 and dice.chance(0.15)))
    return Stream(waves=tuple(waves))


def _comparable(requests: Sequence[Request]) -> tuple[Request, ...]:
    """Without penalties in company: SGLang's overlap scheduler applies them one step late unless another request joins
    the batch in between, with CP off too, so that such an answer depends on timing."""
    if len(requests) == 1 and requests[0].n == 1:
        return tuple(requests)
    return tuple(map(_without_penalty, requests))


def without_penalties(stream: Stream) -> Stream:
    """The stream as it can be compared while others are played."""
    return _each(stream, _without_penalty)


def mixing(stream: Stream) -> Stream:
    """The stream with logprobs of every other request only: batches that SGLang mixes come and go within one stream."""
    kept = itertools.cycle((False, True))
    return _each(stream, lambda request: request if next(kept) else _without_logprobs(request))


def _each(stream: Stream, change: Callable[[Request], Request]) -> Stream:
    """The stream with every request changed, in their order."""
    return Stream(
        waves=tuple(wave.model_copy(update={"requests": tuple(map(change, wave.requests))}) for wave in stream.waves)
    )


def _without_logprobs(request: Request) -> Request:
    return request.model_copy(update={"logprobs": "none", "logprob_start": 0, "top_logprobs": 0})


def crowded(stream: Stream) -> Stream:
    """The stream as it fills a small pool: all its requests in one wave, each with a twin of other text, and answers so
    long that they need more pages than they were admitted with. Without penalties and minimal lengths, which SGLang
    counts anew when a request that it retracted comes back, with CP off too."""
    plain = {"frequency_penalty": 0.0, "min_new_tokens": 0}
    longer = [
        request.model_copy(update={"new_tokens": request.new_tokens + CROWDED_TOKENS, **plain})
        for request in stream.requests
    ]
    return Stream(waves=(Wave(requests=(*longer, *map(_twin, longer))),))


def _twin(request: Request) -> Request:
    other = (
        piece if piece.seed is None else piece.model_copy(update={"seed": piece.seed ^ 1}) for piece in request.prompt
    )
    return request.model_copy(update={"prompt": tuple(other)})


def _without_penalty(request: Request) -> Request:
    return request.model_copy(update={"frequency_penalty": 0.0})


def _length(dice: _Dice) -> int:
    kind = dice.weighted((("small", 55), ("any", 20), ("large", 18), ("long", 2)))
    if kind == "small":
        length = dice.one(SMALL) + dice.whole(-1, 1)
    elif kind == "any":
        length = dice.whole(1, 200)
    elif kind == "large":
        length = dice.one(LARGE) + dice.whole(-1, 1)
    else:
        length = dice.whole(640, LONGEST - 200)
    return length


def _fresh(dice: _Dice, tokens: int) -> Piece:
    period = dice.one((1, 2, 3, 64)) if dice.chance(0.08) else 0
    return Piece(tokens=tokens, seed=dice.whole(0, 2**31 - 1), period=period)


def _prompt(dice: _Dice, earlier: Sequence[tuple[Piece, ...]]) -> tuple[Piece, ...]:
    """Fresh, or after a prefix of an earlier one, or an earlier one's next turn, or the very same."""
    kind = dice.weighted((("fresh", 50), ("prefix", 32), ("turn", 12), ("same", 6)))
    if kind == "fresh" or not earlier:
        return (_fresh(dice, _length(dice)),)
    parent = dice.one(earlier)
    total = sum(piece.tokens for piece in parent)
    if kind == "same":
        return parent
    if kind == "turn" and total < LONGEST // 2:
        return (*parent, Piece(tokens=dice.whole(1, 8)), _fresh(dice, dice.whole(1, PAGE + 1)))
    # Shared up to a boundary or anywhere; at least one token is the request's own.
    shared = min(total, dice.one((PAGE, 2 * PAGE, 4 * PAGE)) + dice.whole(-1, 1) if dice.chance(0.6) else total)
    tail = _length(dice)
    return (*_cut(parent, shared), _fresh(dice, max(1, min(tail, LONGEST - 100 - shared))))


def _cut(pieces: Sequence[Piece], tokens: int) -> tuple[Piece, ...]:
    """The first ``tokens`` tokens."""
    kept: list[Piece] = []
    for piece in pieces:
        if tokens <= 0:
            break
        kept.append(piece.model_copy(update={"tokens": min(piece.tokens, tokens)}))
        tokens -= piece.tokens
    return tuple(kept)


def _request(dice: _Dice, prompt: tuple[Piece, ...], delay_ms: int, with_logprobs: bool) -> Request:
    length = sum(piece.tokens for piece in prompt)
    new_tokens = dice.weighted(((1, 2), (2, 2), (dice.whole(3, 8), 5), (dice.whole(9, 24), 2)))
    stream = dice.chance(0.4)
    options: dict[str, Any] = {}
    if dice.chance(0.2):
        options["stop_token_ids"] = tuple(sorted({dice.one(GENERATED_IDS) for _ in range(dice.whole(1, 12))}))
    if dice.chance(0.15):
        options["stop"] = tuple(chr(dice.one(GENERATED_IDS)) for _ in range(dice.whole(1, 6)))
    if options and dice.chance(0.4):
        options["min_new_tokens"] = dice.whole(1, new_tokens)
    if dice.chance(0.2):
        options["ignore_eos"] = True
    if dice.chance(0.1):
        options["frequency_penalty"] = dice.one((0.5, 1.5))
    kinds: tuple[tuple[Logprobs, float], ...] = (("none", 1), ("output", 5), ("input", 3))
    logprobs = dice.weighted(kinds) if with_logprobs else "none"
    if logprobs == "input" and dice.chance(0.5):
        options["logprob_start"] = dice.whole(0, length - 1)
    if logprobs != "none" and dice.chance(0.2):
        options["top_logprobs"] = dice.whole(1, 3)
    if dice.chance(0.12):
        after_tokens = dice.whole(1, 4) if stream and dice.chance(0.6) else None
        after_ms = 0 if after_tokens else dice.one((1, 5, 30, 100, 300))
        options["abort"] = Abort(after_tokens=after_tokens, after_ms=after_ms, disconnect=dice.chance(0.4))
        new_tokens = max(new_tokens, 8)
    elif dice.chance(0.06):
        options["n"] = 2
    return Request(prompt=prompt, new_tokens=new_tokens, delay_ms=delay_ms, stream=stream, logprobs=logprobs, **options)
