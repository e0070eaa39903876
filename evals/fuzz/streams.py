"""A stream of requests as a small JSON value: what is asked, in which order, and what is called off.

A stream stands alone. Prompts share a prefix by beginning with the same pieces, not by referring to each other, so that
a request can be dropped or shortened without changing what the others ask.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Logprobs = Literal["none", "output", "input"]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Piece(_Value):
    """Part of a prompt.

    Attributes:
        tokens: its length.
        seed: of the endless random text whose first ``tokens`` it is; None: what the reference answers to all before.
        period: the text repeats after so many tokens, so that index scores nearly tie; 0 for never.
    """

    tokens: int = Field(ge=1)
    seed: int | None = None
    period: int = Field(default=0, ge=0)


class Abort(_Value):
    """A request is called off: after so many output tokens (streamed requests only), or so many ms after it was sent.

    Attributes:
        disconnect: by closing the connection, not by ``/abort_request``.
    """

    after_tokens: int | None = Field(default=None, ge=1)
    after_ms: int = Field(default=0, ge=0)
    disconnect: bool = False


class Request(_Value):
    """One request, always greedy.

    Attributes:
        prompt: pieces, in order.
        delay_ms: since its wave began.
        new_tokens, min_new_tokens, stop, stop_token_ids, ignore_eos, frequency_penalty, n: as SGLang names them
            (``new_tokens``: ``max_new_tokens``). ``ignore_eos`` ignores stop token ids as well.
        stream: streamed by the server.
        logprobs: of no tokens, of output tokens, or of input tokens from ``logprob_start`` on and output tokens.
        top_logprobs: how many of each position's best are asked for too.
    """

    prompt: tuple[Piece, ...] = Field(min_length=1)
    new_tokens: int = Field(ge=1)
    delay_ms: int = Field(default=0, ge=0)
    min_new_tokens: int = Field(default=0, ge=0)
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    frequency_penalty: float = 0.0
    n: int = Field(default=1, ge=1)
    stream: bool = False
    logprobs: Logprobs = "output"
    logprob_start: int = Field(default=0, ge=0)
    top_logprobs: int = Field(default=0, ge=0)
    abort: Abort | None = None

    @property
    def prompt_tokens(self) -> int:
        return sum(piece.tokens for piece in self.prompt)


class Wave(_Value):
    """Requests that are sent without waiting for each other; a wave begins when the one before is answered.

    Attributes:
        flush: whether the radix cache is emptied first.
    """

    requests: tuple[Request, ...] = Field(min_length=1)
    flush: bool = False


class Stream(_Value):
    """Waves of requests, played after the cache was emptied."""

    waves: tuple[Wave, ...] = Field(min_length=1)

    @property
    def requests(self) -> tuple[Request, ...]:
        return tuple(request for wave in self.waves for request in wave.requests)

    @property
    def size(self) -> int:
        """Tokens asked and asked for: what a play costs, roughly."""
        return sum(request.prompt_tokens + request.n * request.new_tokens for request in self.requests)
