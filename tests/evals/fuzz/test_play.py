"""How a stream is sent: waves, aborts, and what comes back of them."""

import asyncio
import json

import httpx
import pytest

from evals.fuzz.play import play
from evals.fuzz.streams import Abort, Stream, Wave
from tests.evals.fuzz.examples import request, stream


def answer(tokens, finish="length"):
    meta = {"finish_reason": {"type": finish} if finish else None, "prompt_tokens": 40}
    return {"output_ids": tokens, "text": "", "meta_info": meta}


class Server:
    """Answers after ``seconds``, streams token by token, and remembers what came, in order."""

    def __init__(self, seconds=0.0, status=200):
        self.seen = []
        self.running = self.most = 0
        self._seconds, self._status = seconds, status

    async def __call__(self, asked):
        body = json.loads(asked.content or b"{}")
        self.seen.append((asked.url.path, body))
        if asked.url.path != "/generate":
            return httpx.Response(200)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self._seconds)
        self.running -= 1
        self.seen.append(("answered", body))
        if self._status != 200:
            return httpx.Response(self._status, text="no")
        new_tokens = body["sampling_params"]["max_new_tokens"]
        if not body["stream"]:
            return httpx.Response(200, json=answer(list(range(new_tokens))))
        return httpx.Response(200, stream=Events(new_tokens))

    def paths(self):
        return [path for path, _ in self.seen]


class Events(httpx.AsyncByteStream):
    def __init__(self, tokens):
        self._tokens = tokens

    async def __aiter__(self):
        for count in range(1, self._tokens + 1):
            event = answer(list(range(count)), "length" if count == self._tokens else None)
            yield b"data: " + json.dumps(event).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"


def run(server, played, limit=None):
    async def go():
        transport = httpx.MockTransport(server)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            prompts = {asked: [asked.prompt_tokens] for asked in played.requests}
            return await play(client, played, prompts, limit)

    return asyncio.run(go())


def test_a_wave_waits_for_the_one_before():
    server = Server(0.02)
    waves = (Wave(requests=(request(1), request(2))), Wave(requests=(request(3),), flush=True))
    outcomes = run(server, Stream(waves=waves))
    assert server.paths() == ["/generate"] * 2 + ["answered"] * 2 + ["/flush_cache", "/generate", "answered"]
    assert [len(outcome.answers) for outcome in outcomes] == [1, 1, 1]


def test_outcomes_are_in_the_order_of_the_requests():
    outcomes = run(Server(), stream(request(1, 1, delay_ms=30), request(2, 2)))
    assert [outcome.answers[0].tokens for outcome in outcomes] == [(0,), (0, 1)]


def test_a_limit_bounds_what_runs_at_once():
    async def go():
        return asyncio.Semaphore(2)

    server = Server(0.01)
    run(server, stream(*(request(n) for n in range(1, 8))), asyncio.run(go()))
    assert server.most == 2


def test_what_is_asked():
    server = Server()
    full = request(5, 4, min_new_tokens=2, stop=("a",), stop_token_ids=(65,), logprobs="input", logprob_start=3, n=2)
    run(server, stream(full))
    body = server.seen[0][1]
    assert body["input_ids"] == [5]
    sampling = body["sampling_params"]
    assert (sampling["temperature"], sampling["max_new_tokens"], sampling["min_new_tokens"]) == (0, 4, 2)
    assert (sampling["stop"], sampling["stop_token_ids"], sampling["n"]) == (["a"], [65], 2)
    assert (body["return_logprob"], body["logprob_start_len"]) == (True, 3)


def test_logprobs_only_where_asked_for():
    server = Server()
    run(server, stream(request(1, logprobs="none"), request(2)))
    bodies = [body for path, body in server.seen if path == "/generate"]
    assert ["return_logprob" in body for body in bodies] == [False, True]
    assert bodies[1]["logprob_start_len"] == -1


def test_called_off_by_time():
    server = Server(0.05)
    (outcome,) = run(server, stream(request(abort=Abort(after_ms=10))))
    assert server.paths() == ["/generate", "/abort_request", "answered"]
    assert server.seen[1][1]["rid"] == server.seen[0][1]["rid"]
    assert outcome.answers[0].tokens == (0, 1, 2)


def test_left_by_time():
    server = Server(0.05)
    (outcome,) = run(server, stream(request(abort=Abort(after_ms=10, disconnect=True))))
    assert server.paths() == ["/generate"]
    assert outcome.answers == ()
    assert outcome.error == ""


@pytest.mark.parametrize("disconnect", [False, True])
def test_called_off_after_tokens(disconnect):
    server = Server()
    abort = Abort(after_tokens=2, disconnect=disconnect)
    (outcome,) = run(server, stream(request(40, 5, stream=True, abort=abort)))
    assert ("/abort_request" in server.paths()) == (not disconnect)
    # A server that goes on all the same is listened to.
    assert outcome.answers[0].tokens == ((0, 1) if disconnect else (0, 1, 2, 3, 4))


@pytest.mark.parametrize("streamed", [False, True])
def test_a_refusal_is_an_error(streamed):
    (outcome,) = run(Server(status=500), stream(request(stream=streamed)))
    assert outcome.error == "status 500: no"
