"""Times of given extends: what is asked of a server in the body of POST /set_internal_state, and what it answers."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sglang_cp.cost.calibration import NewTokens, Seconds, Tokens
from sglang_cp.cost.shape import ExtendShape
from sglang_cp.errors import UsageError, first_problem

MOST_ROUNDS = 100


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Lengths(_Record):
    """New and cached tokens of each request of one extend."""

    extend_lens: NewTokens
    prefix_lens: list[Tokens]

    @model_validator(mode="after")
    def _pair_up(self) -> Lengths:
        self.to_shape()
        return self

    @classmethod
    def of(cls, shape: ExtendShape) -> Lengths:
        return cls(extend_lens=list(shape.extend_lens), prefix_lens=list(shape.prefix_lens))

    def to_shape(self) -> ExtendShape:
        return ExtendShape.of(self.extend_lens, self.prefix_lens)


class TimingRequest(_Record):
    """Extends to time, and how often each is run in each mode after a warm-up."""

    extends: Annotated[list[Lengths], Field(min_length=1)]
    rounds: Annotated[int, Field(ge=1, le=MOST_ROUNDS)]


class Times(_Record):
    """Seconds of one extend, by mode, in the order of the rounds."""

    tp: Annotated[list[Seconds], Field(min_length=1)]
    cp: Annotated[list[Seconds], Field(min_length=1)]


def parsed(asked: Any) -> TimingRequest:
    """Raises UsageError for anything that is no TimingRequest."""
    try:
        return TimingRequest.model_validate(asked)
    except ValidationError as error:
        problem = first_problem(error, "the request")
        raise UsageError(f"These extends cannot be timed ({problem}): give other lengths.") from error
