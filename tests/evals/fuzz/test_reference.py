"""The reference is asked for each request once, whole, and answers the turns in prompts first."""

import asyncio
import json

import httpx
import pytest

from evals.fuzz import reference as module
from evals.fuzz.reference import Reference
from evals.fuzz.streams import Abort, Piece, Request
from evals.fuzz.texts import piece_ids
from evals.server import ServerError
from tests.evals.fuzz.examples import request, stream


@pytest.fixture
def company():
    """How many requests ran as each began, itself included."""
    return []


@pytest.fixture
def asked(monkeypatch, company):
    """What the reference was asked; it continues a prompt of n tokens with n, n + 1, ..."""
    bodies = []

    running: list[int] = []

    async def handle(got):
        body = json.loads(got.content)
        bodies.append(body)
        running.append(1)
        company.append(len(running))
        await asyncio.sleep(0.01)
        running.pop()
        length = len(body["input_ids"])
        if length == 13:
            return httpx.Response(400, text="unlucky")
        ids = [length + place for place in range(body["sampling_params"]["max_new_tokens"])]
        meta = {"finish_reason": {"type": "length"}, "prompt_tokens": length}
        return httpx.Response(200, json={"output_ids": ids, "text": "", "meta_info": meta})

    def connect(url):
        return httpx.AsyncClient(transport=httpx.MockTransport(handle), base_url=url)

    monkeypatch.setattr(module, "connect", connect)
    return bodies


def test_what_cannot_change_the_answer_is_not_asked(asked):
    same = [request(), request(stream=True), request(n=2), request(logprobs="none"), request(delay_ms=9),
            request(stream=True, abort=Abort(after_tokens=1))]  # fmt: skip
    prepared = Reference("http://reference").prepare(stream(*same), together=False)
    assert len(asked) == 1
    assert asked[0]["logprob_start_len"] == 0
    assert "stream" not in asked[0]
    assert set(prepared.expected) == set(same)
    assert {said.tokens for said in prepared.expected.values()} == {(40, 41, 42)}


def test_what_can_is_asked_anew(asked):
    other = [request(), request(new_tokens=4), request(stop=("a",)), request(frequency_penalty=0.5), request(41)]
    reference = Reference("http://reference")
    reference.prepare(stream(*other))
    assert len(asked) == 5
    reference.prepare(stream(*other))
    assert len(asked) == 5
    reference.forget()
    reference.prepare(stream(*other))
    assert len(asked) == 10


def test_a_turn_is_what_it_answered(asked):
    turn = Request(prompt=(Piece(tokens=5, seed=1), Piece(tokens=2), Piece(tokens=3, seed=2)), new_tokens=1)
    prepared = Reference("http://reference").prepare(stream(turn))
    text, tail = (piece_ids(turn.prompt[place]) for place in (0, 2))
    assert prepared.prompts[turn] == (*text, 5, 6, *tail)
    assert [len(body["input_ids"]) for body in asked] == [5, 10]


def test_a_refusal_names_the_reference(asked):
    with pytest.raises(ServerError, match="the reference answered 400: unlucky"):
        Reference("http://reference").prepare(stream(request(13)))


def test_a_request_with_a_penalty_is_asked_alone(asked, company):
    others = [request(41), request(42)]
    prepared = Reference("http://reference").prepare(stream(others[0], request(frequency_penalty=0.5), others[1]))
    assert [len(body["input_ids"]) for body in asked] == [40, 41, 42]
    assert company == [1, 1, 2]
    assert set(prepared.expected) == set(prepared.prompts)
