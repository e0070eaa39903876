"""What plain SGLang answers to each request of a stream: asked once, kept."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from evals.fuzz.play import body, connect
from evals.fuzz.said import Said
from evals.fuzz.streams import Piece, Request, Stream
from evals.fuzz.texts import piece_ids
from evals.server import ServerError

TOP = 3
"""Best tokens asked for at each position; more than any request asks."""

_Key = tuple[tuple[int, ...], Request]


@dataclass(frozen=True)
class Prepared:
    """A stream with what the reference says to it.

    Attributes:
        prompts: by request, the prompt's token ids.
        expected: by request, the answer.
    """

    stream: Stream
    prompts: Mapping[Request, Sequence[int]]
    expected: Mapping[Request, Said]


class Reference:
    """The reference server's answers. Greedy answers do not depend on company: requests are asked together, but for
    those with a penalty.

    Args:
        url: of plain SGLang at tp 1 with CP off and no radix cache.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._answers: dict[_Key, Said] = {}
        self.streams = 0

    def prepare(self, stream: Stream, *, together: bool = True) -> Prepared:
        """What it says to a stream, asked at once or one by one. Raises ServerError if it does not answer."""
        self.streams += 1
        return asyncio.run(self._prepare(stream, together))

    def forget(self) -> None:
        """Drop what was kept."""
        self._answers.clear()
        self.streams = 0

    async def _prepare(self, stream: Stream, together: bool) -> Prepared:
        async with connect(self._url) as client:
            prompts: dict[Request, tuple[int, ...]] = {}
            # Turns first, one after the other: a prompt is known when the answers in it are.
            for request in stream.requests:
                prompts[request] = await self._ids(client, request)
            # Those whose answer depends on company (see generate) first, each alone.
            alone = [request for request in prompts if request.frequency_penalty or not together]
            expected = {request: await self._answer(client, prompts[request], request) for request in alone}
            others = [request for request in prompts if request not in expected]
            said = await asyncio.gather(*(self._answer(client, prompts[request], request) for request in others))
        return Prepared(stream, prompts, expected | dict(zip(others, said, strict=True)))

    async def _ids(self, client: httpx.AsyncClient, request: Request) -> tuple[int, ...]:
        ids: tuple[int, ...] = ()
        for piece in request.prompt:
            if piece.seed is None:
                turn = Request(prompt=(piece,), new_tokens=piece.tokens)
                ids += (await self._answer(client, ids, turn)).tokens
            else:
                ids += piece_ids(piece)
        return ids

    async def _answer(self, client: httpx.AsyncClient, prompt: tuple[int, ...], request: Request) -> Said:
        key = (prompt, _what_matters(request))
        if key not in self._answers:
            asked = body(key[1], prompt)
            try:
                response = await client.post("/generate", json=asked)
            except httpx.HTTPError as error:
                raise ServerError(f"the reference at {self._url} does not answer: {error!r}") from error
            if response.status_code != httpx.codes.OK:
                raise ServerError(f"the reference answered {response.status_code}: {response.text[:500]}")
            self._answers[key] = Said.from_response(response.json())
        return self._answers[key]


def _what_matters(request: Request) -> Request:
    """The request as the reference is asked it: whole, with all logprobs; what cannot change the answer is dropped."""
    fullest: dict[str, Any] = {
        "prompt": (Piece(tokens=1),),
        "delay_ms": 0,
        "n": 1,
        "stream": False,
        "logprobs": "input",
        "logprob_start": 0,
        "top_logprobs": TOP,
        "abort": None,
    }
    return request.model_copy(update=fullest)
