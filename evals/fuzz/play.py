"""Plays a stream against a server, with its true concurrency and timing."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import httpx

from evals.fuzz.said import Outcome, Said
from evals.fuzz.streams import Request, Stream

ANSWER_TIMEOUT_S = 180.0
"""A request that takes longer hangs."""

Limit = AbstractAsyncContextManager[Any]


def body(request: Request, prompt: Sequence[int]) -> dict[str, Any]:
    """The request for /generate, without ``stream``, ``n`` and ``rid``."""
    sampling: dict[str, Any] = {
        "temperature": 0,
        "max_new_tokens": request.new_tokens,
        "min_new_tokens": request.min_new_tokens,
        "ignore_eos": request.ignore_eos,
        "frequency_penalty": request.frequency_penalty,
    }
    if request.stop:
        sampling["stop"] = list(request.stop)
    if request.stop_token_ids:
        sampling["stop_token_ids"] = list(request.stop_token_ids)
    asked: dict[str, Any] = {"input_ids": list(prompt), "sampling_params": sampling}
    if request.logprobs != "none":
        start = request.logprob_start if request.logprobs == "input" else -1
        asked |= {"return_logprob": True, "logprob_start_len": start, "top_logprobs_num": request.top_logprobs}
    return asked


async def play(
    client: httpx.AsyncClient, stream: Stream, prompts: Mapping[Request, Sequence[int]], limit: Limit | None = None
) -> list[Outcome]:
    """Play all waves; the outcomes are in the order of ``stream.requests``.

    Args:
        prompts: token ids of every request's prompt.
        limit: entered around each request, to bound how many run at once.
    """
    outcomes: list[Outcome] = []
    for wave in stream.waves:
        if wave.flush:
            # Refused while others' requests run, which is no matter here.
            await client.post("/flush_cache")
        asking = (_ask(client, request, prompts[request], limit or nullcontext()) for request in wave.requests)
        outcomes += await asyncio.gather(*asking)
    return outcomes


def connect(url: str) -> httpx.AsyncClient:
    """A client for as many requests at a time as a stream has."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=url, timeout=ANSWER_TIMEOUT_S, limits=limits, verify=False)


async def _ask(client: httpx.AsyncClient, request: Request, prompt: Sequence[int], limit: Limit) -> Outcome:
    await asyncio.sleep(request.delay_ms / 1e3)
    rid = uuid.uuid4().hex
    asked = body(request, prompt) | {"stream": request.stream}
    asked["sampling_params"]["n"] = request.n
    if request.abort:
        asked["rid"] = rid
    async with limit:
        answering = asyncio.ensure_future(
            _streamed(client, request, asked) if request.stream else _whole(client, asked)
        )
        if request.abort is None or request.abort.after_tokens is not None:
            return await answering
        await asyncio.wait((answering,), timeout=request.abort.after_ms / 1e3)
        if not request.abort.disconnect:
            await _abort(client, rid)
            return await answering
        answering.cancel()
        try:
            return await answering
        except asyncio.CancelledError:
            return Outcome()


async def _whole(client: httpx.AsyncClient, asked: Mapping[str, Any]) -> Outcome:
    try:
        response = await client.post("/generate", json=asked)
    except httpx.HTTPError as error:
        return Outcome(error=f"{type(error).__name__} {error}")
    if response.status_code != httpx.codes.OK:
        return Outcome(error=f"status {response.status_code}: {response.text[:300]}")
    answered = response.json()
    return Outcome(tuple(map(Said.from_response, answered if isinstance(answered, list) else [answered])))


async def _streamed(client: httpx.AsyncClient, request: Request, asked: Mapping[str, Any]) -> Outcome:
    last: dict[int, Any] = {}
    abort = request.abort
    try:
        async with client.stream("POST", "/generate", json=asked) as response:
            if response.status_code != httpx.codes.OK:
                return Outcome(error=f"status {response.status_code}: {(await response.aread()).decode()[:300]}")
            async for line in response.aiter_lines():
                if not line.startswith("data:") or "[DONE]" in line:
                    continue
                event = json.loads(line.removeprefix("data:"))
                if "error" in event:
                    return Outcome(error=str(event["error"]))
                last[event.get("index", 0)] = event
                if abort and abort.after_tokens and len(event["output_ids"]) >= abort.after_tokens:
                    if abort.disconnect:
                        break
                    await _abort(client, asked["rid"])
                    abort = None
    except httpx.HTTPError as error:
        return Outcome(error=f"{type(error).__name__} {error}")
    return Outcome(tuple(Said.from_response(last[index]) for index in sorted(last)))


async def _abort(client: httpx.AsyncClient, rid: str) -> None:
    await client.post("/abort_request", json={"rid": rid})
