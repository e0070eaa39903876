"""Stream k of seed S is the same for ever, stays within what every server takes, and meets the boundaries."""

import hashlib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.fuzz.generate import (
    CROWDED_TOKENS,
    LARGE,
    LONGEST,
    PAGE,
    SMALL,
    crowded,
    generate,
    mixing,
    without_penalties,
)
from evals.fuzz.streams import Stream
from sglang_cp.tiny_checkpoint.config import TinyConfig

SOME = [generate(0, index) for index in range(1000)]
STREAMS = st.builds(generate, st.integers(0, 2**31), st.integers(0, 10**6))


def test_the_first_hundred_streams_of_seed_0_are_the_same_for_ever():
    text = "\n".join(stream.model_dump_json() for stream in SOME[:100])
    assert hashlib.sha256(text.encode()).hexdigest()[:32] == "1c92056dcfa81a8e664e4c3eb761b986"


@given(st.integers(0, 2**31), st.integers(0, 10**6))
def test_a_stream_depends_on_its_seed_and_index_alone(seed, index):
    first = generate(seed, index)
    generate(seed, index + 1)
    assert generate(seed, index) == first
    assert len({generate(seed, index), generate(seed, index + 1), generate(seed + 1, index)}) == 3


@given(STREAMS)
def test_a_stream_is_a_json_value(stream):
    assert Stream.model_validate_json(stream.model_dump_json(exclude_defaults=True)) == stream


@given(STREAMS)
def test_every_server_takes_every_request(stream):
    for request in stream.requests:
        assert request.prompt[0].seed is not None
        assert request.prompt_tokens + request.new_tokens <= LONGEST
        assert request.min_new_tokens <= request.new_tokens
        assert request.logprob_start < request.prompt_tokens
        assert request.abort is None or request.n == 1
        if request.abort and request.abort.after_tokens:
            assert request.stream
            assert request.abort.after_tokens < request.new_tokens


@pytest.mark.parametrize("boundary", [*SMALL, *LARGE])
def test_lengths_lie_on_both_sides_of_each_boundary(boundary):
    lengths = Counter(request.prompt_tokens for stream in SOME for request in stream.requests)
    assert all(lengths[boundary + side] for side in (-1, 0, 1))


def test_the_boundaries_are_those_of_the_checkpoint():
    assert TinyConfig().index_topk in SMALL
    assert PAGE in SMALL


@pytest.mark.parametrize(
    ("what", "least"),
    {
        "aborted after a token": (lambda r: r.abort and r.abort.after_tokens, 80),
        "aborted by time": (lambda r: r.abort and not r.abort.after_tokens, 150),
        "disconnected": (lambda r: r.abort and r.abort.disconnect, 100),
        "n": (lambda r: r.n > 1, 100),
        "next turn": (lambda r: any(piece.seed is None for piece in r.prompt), 150),
        "shared prefix": (lambda r: len(r.prompt) > 1, 500),
        "periodic": (lambda r: any(piece.period for piece in r.prompt), 100),
        "stop": (lambda r: r.stop or r.stop_token_ids, 500),
        "stops only after some tokens": (lambda r: r.min_new_tokens, 150),
        "penalty": (lambda r: r.frequency_penalty, 50),
        "streamed": (lambda r: r.stream, 800),
        "input logprobs": (lambda r: r.logprobs == "input", 300),
        "no logprobs": (lambda r: r.logprobs == "none", 300),
        "burst": (lambda r: not r.delay_ms, 800),
    }.values(),
)
def test_requests_are_of_every_kind(what, least):
    assert sum(bool(what(request)) for stream in SOME for request in stream.requests) >= least


def test_streams_have_waves_and_flushes():
    assert {len(stream.waves) for stream in SOME} == {1, 2, 3}
    assert sum(wave.flush for stream in SOME for wave in stream.waves) > 50
    assert max(len(wave.requests) for stream in SOME for wave in stream.waves) == 7


def test_penalties_come_alone():
    """Found as false alarms of seed 1, streams 225 to 1002: SGLang's own answer then depends on timing."""
    waves = [wave for index in range(400) for wave in generate(1, index).waves]
    penalized = [wave for wave in waves if any(request.frequency_penalty for request in wave.requests)]
    assert penalized
    assert all(len(wave.requests) == 1 and wave.requests[0].n == 1 for wave in penalized)


@given(STREAMS)
def test_without_penalties_all_else_is_as_it_was(stream):
    text = without_penalties(stream).model_dump_json(exclude_defaults=True)
    assert "penalty" not in text
    assert without_penalties(stream).size == stream.size
    if not any(request.frequency_penalty for request in stream.requests):
        assert without_penalties(stream) == stream


@given(STREAMS)
def test_a_crowded_stream_asks_twice_as_much_at_once_and_for_longer(stream):
    full = crowded(stream)
    assert len(full.waves) == 1
    assert len(set(full.requests)) == 2 * len(set(stream.requests))
    for request, before in zip(full.requests, (*stream.requests, *stream.requests), strict=True):
        assert request.prompt_tokens == before.prompt_tokens
        assert request.new_tokens == before.new_tokens + CROWDED_TOKENS > PAGE
        assert not request.frequency_penalty
        assert not request.min_new_tokens


@given(STREAMS)
def test_a_mixing_stream_asks_the_same_and_for_logprobs_of_every_other_request(stream):
    requests = mixing(stream).requests
    assert requests[1::2] == stream.requests[1::2]
    for request, before in zip(requests[::2], stream.requests[::2], strict=True):
        assert request.logprobs == "none"
        assert before.model_copy(update={"logprobs": "none", "logprob_start": 0, "top_logprobs": 0}) == request
