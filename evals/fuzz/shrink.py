"""Makes a failing stream small: drops, simplifies and shortens while an oracle says that it still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from evals.fuzz.streams import Request, Stream, Wave

_PLAIN: tuple[dict[str, Any], ...] = (
    {"abort": None},
    {"n": 1},
    {"stream": False},
    {"stop": (), "stop_token_ids": (), "min_new_tokens": 0, "ignore_eos": False, "frequency_penalty": 0.0},
    {"top_logprobs": 0, "logprob_start": 0, "logprobs": "output"},
    {"delay_ms": 0},
)
"""What a request may be without; each is tried alone."""


def shrink(stream: Stream, fails: Callable[[Stream], bool]) -> Stream:
    """The smallest stream that was found to fail. ``fails`` may say no to all to end the search."""
    tried = {stream}
    progress = True
    while progress:
        progress = False
        for reduce in (_one_alone, _without_waves, _without_requests, _simpler, _shorter):
            number = 0
            # After a success the same number names the next thing to take away.
            while (smaller := next(_from(reduce(stream), number), None)) is not None:
                if smaller not in tried and fails(smaller):
                    stream, progress = smaller, True
                else:
                    number += 1
                tried.add(smaller)
    return stream


def _from(streams: Iterator[Stream], number: int) -> Iterator[Stream]:
    for index, stream in enumerate(streams):
        if index >= number:
            yield stream


def _one_alone(stream: Stream) -> Iterator[Stream]:
    """Most faults need one plain request: the smallest first."""
    if len(stream.requests) > 1:
        for request in sorted(stream.requests, key=lambda request: request.prompt_tokens):
            plain = request.model_copy(update={name: value for change in _PLAIN for name, value in change.items()})
            yield Stream(waves=(Wave(requests=(plain,)),))


def _without_waves(stream: Stream) -> Iterator[Stream]:
    waves = stream.waves
    if len(waves) > 1:
        for number in range(len(waves)):
            yield Stream(waves=(waves[number],))
        for number in range(len(waves)):
            yield Stream(waves=waves[:number] + waves[number + 1 :])
    for number, wave in enumerate(waves):
        if wave.flush:
            yield _with_wave(stream, number, Wave(requests=wave.requests))


def _without_requests(stream: Stream) -> Iterator[Stream]:
    for number, wave in enumerate(stream.waves):
        requests = wave.requests
        if len(requests) > 1:
            for size in (len(requests) // 2, 1):
                for start in range(0, len(requests), size):
                    kept = requests[:start] + requests[start + size :]
                    yield _with_wave(stream, number, wave.model_copy(update={"requests": kept}))


def _simpler(stream: Stream) -> Iterator[Stream]:
    for changed in _PLAIN:
        yield from _each_request(stream, partial(_only, changed))


def _only(change: dict[str, Any], request: Request) -> Iterator[dict[str, Any]]:
    yield change


def _shorter(stream: Stream) -> Iterator[Stream]:
    yield from _each_request(stream, _shorter_request)


def _shorter_request(request: Request) -> Iterator[dict[str, Any]]:
    for tokens in _less(request.new_tokens):
        yield {"new_tokens": tokens, "min_new_tokens": min(tokens, request.min_new_tokens)}
    pieces = request.prompt
    if len(pieces) > 1:
        for number in range(len(pieces)):
            yield {"prompt": pieces[:number] + pieces[number + 1 :]}
    for number, piece in enumerate(pieces):
        if piece.period:
            yield {"prompt": (*pieces[:number], piece.model_copy(update={"period": 0}), *pieces[number + 1 :])}
        for tokens in _less(piece.tokens):
            yield {"prompt": (*pieces[:number], piece.model_copy(update={"tokens": tokens}), *pieces[number + 1 :])}


def _less(value: int) -> list[int]:
    """Smaller numbers from 1 on, boldest first, each step half as large as the one before."""
    steps = []
    step = value // 2
    while step:
        steps.append(value - step)
        step //= 2
    return ([1] if value > 2 else []) + steps


def _each_request(stream: Stream, changes: Callable[[Request], Iterator[dict[str, Any]]]) -> Iterator[Stream]:
    for number, wave in enumerate(stream.waves):
        for place, request in enumerate(wave.requests):
            for change in changes(request):
                changed = request.model_copy(update=change)
                if changed == request or (changed.prompt and changed.prompt[0].seed is None):
                    continue  # a prompt begins with a text
                start = min(changed.logprob_start, changed.prompt_tokens - 1)
                changed = changed.model_copy(update={"logprob_start": start})
                requests = (*wave.requests[:place], changed, *wave.requests[place + 1 :])
                yield _with_wave(stream, number, wave.model_copy(update={"requests": requests}))


def _with_wave(stream: Stream, number: int, wave: Wave) -> Stream:
    return Stream(waves=(*stream.waves[:number], wave, *stream.waves[number + 1 :]))
