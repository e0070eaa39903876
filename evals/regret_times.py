"""Extends timed in both modes, and the file that keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError

from sglang_cp.calibration.requests import Times
from sglang_cp.cost.calibration import Coefficient, NewTokens, Seconds, Tokens
from sglang_cp.cost.files import write_whole
from sglang_cp.cost.shape import ExtendShape
from sglang_cp.errors import UsageError, first_problem


@dataclass(frozen=True)
class Timed:
    """An extend timed in both modes.

    Attributes:
        shape: its lengths.
        tp_seconds, cp_seconds: medians.
        noise: by how much of itself the ratio of the two may be off: half the range of the repeats over their median,
            of both modes together; None where nothing was repeated.
    """

    shape: ExtendShape
    tp_seconds: float
    cp_seconds: float
    noise: float | None = None

    @classmethod
    def of(cls, shape: ExtendShape, times: Times) -> Timed:
        """From the rounds that a server timed."""
        rounds = (times.tp, times.cp)
        repeated = len(times.tp) > 1
        noise = sum((max(seconds) - min(seconds)) / 2 / median(seconds) for seconds in rounds) if repeated else None
        return cls(shape, median(times.tp), median(times.cp), noise)


class _TimedRecord(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    extend_lens: NewTokens
    prefix_lens: list[Tokens]
    tp_seconds: Seconds
    cp_seconds: Seconds
    noise: Coefficient | None = None


class _Times(RootModel[list[_TimedRecord]]):
    root: Annotated[list[_TimedRecord], Field(min_length=1)]


def read_times(path: Path) -> list[Timed]:
    """Read a JSON list of {extend_lens, prefix_lens, tp_seconds, cp_seconds, noise (optional)}. Raises UsageError."""
    try:
        records = _Times.model_validate_json(path.read_bytes()).root
        return [
            Timed(ExtendShape.of(r.extend_lens, r.prefix_lens), r.tp_seconds, r.cp_seconds, r.noise) for r in records
        ]
    except OSError as error:
        raise UsageError(f"--times {path} cannot be read ({error.strerror}): measure the grid again.") from error
    except ValidationError as error:
        problem = first_problem(error, "the file")
        raise UsageError(f"--times {path} cannot be used ({problem}): measure the grid again.") from error
    except ValueError as error:
        raise UsageError(f"--times {path} cannot be used ({error}): measure the grid again.") from error


def write_times(path: Path, timed: Sequence[Timed]) -> None:
    """Write what ``read_times`` reads, a line an extend. Raises UsageError if the place cannot be written."""
    records = [
        _TimedRecord(
            extend_lens=list(item.shape.extend_lens),
            prefix_lens=list(item.shape.prefix_lens),
            tp_seconds=item.tp_seconds,
            cp_seconds=item.cp_seconds,
            noise=item.noise,
        ).model_dump_json(exclude_none=True)
        for item in timed
    ]
    try:
        write_whole(path, ("[\n" + ",\n".join(records) + "\n]\n").encode())
    except OSError as error:
        raise UsageError(f"--output {path} cannot be written ({error.strerror}): give another place.") from error
