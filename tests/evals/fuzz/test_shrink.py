"""A failing stream becomes small, and still fails."""

from hypothesis import given, settings
from hypothesis import strategies as st

from evals.fuzz.generate import generate
from evals.fuzz.shrink import shrink
from evals.fuzz.streams import Abort, Piece, Request, Stream, Wave
from tests.evals.fuzz.examples import request, stream


def test_down_to_the_two_requests_the_fault_needs():
    """The fault: a stream's request of 33 tokens or more, while another one streams."""

    def fails(tried):
        return any(r.prompt_tokens >= 33 for r in tried.requests) and any(
            r.stream and r.prompt_tokens < 33 for r in tried.requests
        )

    large = generate(0, 4)
    waves = (*large.waves, Wave(requests=(request(600), request(20, stream=True, n=2)), flush=True))
    smallest = shrink(Stream(waves=waves), fails)
    assert fails(smallest)
    assert sorted(r.prompt_tokens for r in smallest.requests) == [1, 33]
    assert all(r.new_tokens == 1 for r in smallest.requests)


def test_options_that_do_not_matter_go():
    full = request(
        100,
        9,
        delay_ms=30,
        min_new_tokens=2,
        stop=("a",),
        ignore_eos=True,
        frequency_penalty=0.5,
        n=2,
        stream=True,
        logprobs="input",
        logprob_start=80,
        top_logprobs=2,
        abort=Abort(after_tokens=1),
    )
    assert shrink(stream(full), lambda tried: True) == stream(request(1, 1))


def test_an_option_that_matters_stays():
    smallest = shrink(stream(request(100, abort=Abort(after_ms=1))), lambda tried: bool(tried.requests[0].abort))
    assert smallest == stream(request(1, 1, abort=Abort(after_ms=1)))


def test_pieces_go_but_a_prompt_begins_with_a_text():
    pieces = (Piece(tokens=9, seed=1), Piece(tokens=3), Piece(tokens=20, seed=2, period=3))
    answered = stream(Request(prompt=pieces, new_tokens=1))
    smallest = shrink(answered, lambda tried: any(piece.seed is None for piece in tried.requests[0].prompt))
    assert smallest.requests[0].prompt == (Piece(tokens=1, seed=1), Piece(tokens=1))


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 300))
def test_what_is_found_fails_and_is_no_larger(index, tokens):
    large = generate(1, index)

    def fails(tried):
        return any(request.prompt_tokens >= tokens for request in tried.requests)

    smallest = shrink(large, fails)
    if fails(large):
        assert [request.prompt_tokens for request in smallest.requests] == [tokens]
    else:
        assert smallest == large


def test_the_oracle_ends_the_search():
    """And it is asked few times: a replay takes seconds."""
    asked = []

    def fails(tried):
        asked.append(tried)
        return len(asked) <= 60 and any(request.prompt_tokens >= 33 for request in tried.requests)

    largest = max((generate(0, index) for index in range(50)), key=lambda s: s.size)
    smallest = shrink(largest, fails)
    assert len(set(asked)) == len(asked)
    assert smallest.size < 200
