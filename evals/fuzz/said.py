"""What a server said to one request, and whether it is what the reference said: pure, no HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evals.fuzz.streams import Request

Positions = tuple[float | None, ...]
"""Logprobs in nats, position by position; None where there is none."""


Tops = tuple[tuple[tuple[float, int], ...], ...]
"""Position by position, the best tokens' logprobs and ids."""


@dataclass(frozen=True)
class Said:
    """One answer.

    Attributes:
        tokens: output token ids.
        text: as the server detokenized and trimmed them.
        finish: why it ended (``length``, ``stop: 65``, ``abort``), empty for a stream that was cut off.
        prompt_tokens: as the server counted them.
        output_logprobs: of the output tokens.
        input_logprobs: of the prompt's tokens from ``logprob_start`` on.
        top: by position, input before output, the best tokens' ids and logprobs.
        retractions: how often the request was retracted and came back.
    """

    tokens: tuple[int, ...]
    text: str
    finish: str
    prompt_tokens: int
    output_logprobs: Positions = ()
    input_logprobs: Positions = ()
    top_input: Tops = ()
    top_output: Tops = ()
    retractions: int = 0

    @classmethod
    def from_response(cls, response: Mapping[str, Any]) -> Said:
        """From one item of /generate's answer, or the last event of a stream of them.

        A request that is called off while it waits is answered with little more than its finish reason, and, where it
        had been retracted and is streamed, with its last token as if that were all: such tokens are left out.
        """
        meta = response["meta_info"]
        tokens = tuple(response.get("output_ids") or ())
        finish = _finish(meta.get("finish_reason"))
        if finish == "abort" and meta.get("completion_tokens", len(tokens)) != len(tokens):
            return cls((), "", finish, 0)
        return cls(
            tokens=tokens,
            text=response.get("text") or "",
            finish=finish,
            prompt_tokens=int(meta.get("prompt_tokens", 0)),
            output_logprobs=_logprobs(meta.get("output_token_logprobs")),
            input_logprobs=_logprobs(meta.get("input_token_logprobs")),
            top_input=_top(meta.get("input_top_logprobs")),
            top_output=_top(meta.get("output_top_logprobs")),
            retractions=int(meta.get("num_retractions", 0)),
        )


@dataclass(frozen=True)
class Outcome:
    """What became of one request: its answers (``n`` of them, fewer if it was called off), and an error's words."""

    answers: tuple[Said, ...] = ()
    error: str = ""


@dataclass
class Compared:
    """How much was compared, by how much logprobs differ at most, in nats, and how often requests were retracted."""

    tokens: int = 0
    logprobs: int = 0
    max_gap: float = 0.0
    retractions: int = 0

    def add(self, other: Compared) -> None:
        """Count what was compared elsewhere."""
        self.tokens += other.tokens
        self.logprobs += other.logprobs
        self.max_gap = max(self.max_gap, other.max_gap)
        self.retractions += other.retractions


def judge(request: Request, expected: Said, outcome: Outcome, tolerance: float, compared: Compared) -> list[str]:
    """What is wrong with an outcome, each one sentence. ``compared`` is added to.

    An aborted request may have said nothing, or an error that speaks of the abort; what it did say must be how the
    reference's answer begins.
    """
    if outcome.error:
        called_off = request.abort is not None and "abort" in outcome.error.lower()
        return [] if called_off else [f"it was not answered: {outcome.error}"]
    if request.abort is None and len(outcome.answers) != request.n:
        return [f"{len(outcome.answers)} answers came for n = {request.n}"]
    found = []
    for said in outcome.answers:
        whole = said.finish not in ("", "abort")
        if not whole and request.abort is None:
            found.append(f"the answer ended with {said.finish or 'no'} finish reason after {len(said.tokens)} tokens")
        found += _differences(request, expected, said, whole, tolerance, compared)
    return found


def _differences(
    request: Request, expected: Said, said: Said, whole: bool, tolerance: float, compared: Compared
) -> list[str]:
    common = min(len(said.tokens), len(expected.tokens))
    compared.tokens += common
    compared.retractions += said.retractions
    first = next((i for i in range(common) if said.tokens[i] != expected.tokens[i]), None)
    found = []
    if first is not None:
        found.append(f"output token {first} is {said.tokens[first]}, not {expected.tokens[first]}")
    elif len(said.tokens) > common or (whole and len(said.tokens) != len(expected.tokens)):
        found.append(f"{len(said.tokens)} output tokens, not {len(expected.tokens)}")
    elif whole:
        for what in ("finish", "text", "prompt_tokens"):
            if getattr(said, what) != getattr(expected, what):
                found.append(f"{what} is {getattr(said, what)!r}, not {getattr(expected, what)!r}")
    if request.logprobs == "none":
        return found
    agreeing = common if first is None else first
    pairs = [("output", said.output_logprobs[:agreeing], expected.output_logprobs[:agreeing])]
    if request.logprobs == "input" and whole:
        pairs.append(("input", said.input_logprobs, expected.input_logprobs[request.logprob_start :]))
    for name, ours, theirs in pairs:
        found += _gaps(name, ours, theirs, tolerance, compared)
    if request.top_logprobs:
        tops = [("top output", said.top_output[:agreeing], expected.top_output[:agreeing])]
        if request.logprobs == "input" and whole:
            tops.append(("top input", said.top_input, expected.top_input[request.logprob_start :]))
        for name, ranked, right in tops:
            found += _top_gaps(name, ranked, right, request.top_logprobs, tolerance, compared)
    return found


def _gaps(
    name: str, ours: Sequence[float | None], theirs: Sequence[float | None], tolerance: float, compared: Compared
) -> list[str]:
    if len(ours) != len(theirs):
        return [f"{len(ours)} {name} logprobs, not {len(theirs)}"]
    for position, (mine, right) in enumerate(zip(ours, theirs, strict=True)):
        # The prompt's first token has no logprob; the first of those asked for may have none either.
        if mine is None or right is None:
            if mine is not None or (right is not None and position):
                return [f"the {name} logprob at position {position} is {mine}, not {right}"]
            continue
        gap = abs(mine - right)
        compared.logprobs += 1
        compared.max_gap = max(compared.max_gap, gap)
        if not gap <= tolerance:  # NaN is a difference too
            return [f"the {name} logprob at position {position} is off by {gap:.1e} nats"]
    return []


def _top_gaps(name: str, ours: Tops, theirs: Tops, best: int, tolerance: float, compared: Compared) -> list[str]:
    """Of the ``best`` tokens of each position. The logprobs alone: tokens with equal ones may change places."""
    if len(ours) != len(theirs):
        return [f"{name} logprobs of {len(ours)} positions, not {len(theirs)}"]
    for position, (mine, right) in enumerate(zip(ours, theirs, strict=True)):
        if not mine and not position:
            continue  # as of the single logprobs
        values = [logprob for logprob, _ in mine], [logprob for logprob, _ in right[:best]]
        if wrong := _gaps(f"{name} {position}", *values, tolerance, compared):
            return wrong
    return []


def _finish(reason: Mapping[str, Any] | None) -> str:
    if not reason:
        return ""
    matched = reason.get("matched")
    return str(reason["type"]) if matched is None else f"{reason['type']}: {matched}"


def _logprobs(entries: Sequence[Sequence[Any]] | None) -> Positions:
    return tuple(entry[0] for entry in entries or ())


def _top(positions: Sequence[Sequence[Sequence[Any]] | None] | None) -> Tops:
    return tuple(tuple((entry[0], entry[1]) for entry in position or ()) for position in positions or ())
