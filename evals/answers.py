"""What a server said to a prompt, and how two answers differ: pure, no HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """Greedy output of one prompt.

    Attributes:
        tokens: output token ids.
        output_logprobs: logprob of each output token, in nats.
        input_logprobs: logprob of each input token but the first, in nats; empty when not asked for.
        cached_tokens: prompt tokens that came from the radix cache.
    """

    tokens: tuple[int, ...]
    output_logprobs: tuple[float, ...]
    input_logprobs: tuple[float, ...] = ()
    cached_tokens: int = 0

    @classmethod
    def from_response(cls, response: dict[str, Any]) -> Answer:
        """From one item of /generate's answer with ``return_logprob``."""
        meta = response["meta_info"]
        return cls(
            tokens=tuple(response["output_ids"]),
            output_logprobs=tuple(entry[0] for entry in meta["output_token_logprobs"]),
            input_logprobs=tuple(entry[0] for entry in meta.get("input_token_logprobs", [])[1:]),
            cached_tokens=int(meta.get("cached_tokens", 0)),
        )


@dataclass(frozen=True)
class Difference:
    """How a candidate's answer differs from the reference's.

    Attributes:
        first_token: index of the first output token that differs, None if all agree.
        max_logprob: largest absolute logprob difference in nats over input tokens and the agreeing output tokens.
    """

    first_token: int | None
    max_logprob: float


def compare(reference: Answer, candidate: Answer) -> Difference:
    """Compare two answers to the same prompt. Raises ValueError if they are not answers to the same request."""
    if len(reference.tokens) != len(candidate.tokens):
        raise ValueError(f"answers of {len(reference.tokens)} and {len(candidate.tokens)} tokens cannot be compared")
    pairs = zip(reference.tokens, candidate.tokens, strict=True)
    first = next((index for index, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
    agreeing = len(reference.tokens) if first is None else first
    gaps = [
        abs(a - b)
        for a, b in zip(reference.output_logprobs[:agreeing], candidate.output_logprobs[:agreeing], strict=True)
    ]
    if reference.input_logprobs and candidate.input_logprobs:
        gaps += [abs(a - b) for a, b in zip(reference.input_logprobs, candidate.input_logprobs, strict=True)]
    return Difference(first, max(gaps, default=0.0))
