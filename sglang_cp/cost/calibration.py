"""The calibration file: measured extends and the model fitted to them, as JSON, for one device and server layout."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sglang_cp.cost.files import write_whole
from sglang_cp.cost.fit import Fit, Measurement
from sglang_cp.cost.model import CostModel
from sglang_cp.cost.shape import ExtendShape
from sglang_cp.cost.terms import TERMS, Geometry, Mode
from sglang_cp.errors import UsageError, first_problem

_AGAIN = "measure again with `sglang-cp calibrate`"
MOST_TOKENS = 10**9
"""More than any server sees, and little enough to reckon with."""
_HOUR = 3600.0
"""No extend takes so long, nor does any unit of one."""

Tokens = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
NewTokens = Annotated[list[Annotated[int, Field(ge=1, le=MOST_TOKENS)]], Field(min_length=1)]
Seconds = Annotated[float, Field(gt=0, le=_HOUR, allow_inf_nan=False)]
Coefficient = Annotated[float, Field(ge=0, le=_HOUR, allow_inf_nan=False)]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class CalibrationKey(_Record):
    """What a calibration depends on: it holds for servers with an equal key only.

    ``model`` has the geometry by config.json's names (architecture, layers, hidden_size and so on); ``versions`` has
    sglang, sglang_cp and torch. ``hidden_states_kept``: extends keep those of all rows, for a draft model.
    """

    device: str
    model: dict[str, str | int]
    dtype: str
    kv_cache_dtype: str
    tp: Annotated[int, Field(ge=2, le=1024)]
    shard_source: str
    hidden_states_kept: bool = False
    versions: dict[str, str]

    @property
    def file_name(self) -> str:
        """A name of its own for each key."""
        digest = hashlib.sha256(json.dumps(self.model_dump(), sort_keys=True).encode()).hexdigest()
        return f"calibration-{digest[:16]}.json"

    def differences(self, other: CalibrationKey) -> list[str]:
        """What differs, such as ``tp is 4, not 2``: this key's value, then the other's."""
        mine, others = self.model_dump(), other.model_dump()
        return [f"{name} is {mine[name]}, not {others[name]}" for name in mine if mine[name] != others[name]]


class MeasuredExtend(_Record):
    """One timed extend."""

    extend_lens: NewTokens
    prefix_lens: list[Tokens]
    mode: Literal["tp", "cp"]
    seconds: Seconds

    @model_validator(mode="after")
    def _lengths_pair_up(self) -> MeasuredExtend:
        self.to_measurement()
        return self

    def to_measurement(self) -> Measurement:
        return Measurement(ExtendShape.of(self.extend_lens, self.prefix_lens), Mode(self.mode), self.seconds)


class Calibration(_Record):
    """The file's contents.

    The coefficients are stored, not fitted again by each reader: ranks that decide by them need the same floats.
    """

    schema_version: Literal[1] = 1
    key: CalibrationKey
    index_topk: Annotated[int, Field(ge=1)]
    pull_seconds: Coefficient
    host_seconds: dict[Literal["tp", "cp"], Coefficient]
    coefficients: dict[str, Coefficient]
    measurements: Annotated[list[MeasuredExtend], Field(min_length=1)]

    @model_validator(mode="after")
    def _terms_are_known(self) -> Calibration:
        unknown, missing = sorted(set(self.coefficients) - set(TERMS)), sorted(set(TERMS) - set(self.coefficients))
        if unknown or missing:
            raise ValueError(f"unknown terms {unknown}" if unknown else f"no coefficient of {', '.join(missing)}")
        return self

    @model_validator(mode="after")
    def _measurements_could_tell_them(self) -> Calibration:
        points = {(tuple(m.extend_lens), tuple(m.prefix_lens), m.mode) for m in self.measurements}
        for mode in Mode:
            if not any(point[2] == mode.value for point in points):
                raise ValueError(f"no extend was measured as {mode.value}")
        told = sum(coefficient > 0 for coefficient in self.coefficients.values())
        if not told:
            raise ValueError("every coefficient is 0")
        if len(points) < told:
            raise ValueError(f"{len(points)} measured points are too few for {told} coefficients")
        return self

    @classmethod
    def from_fit(cls, key: CalibrationKey, fitted: Fit) -> Calibration:
        """Raises ValueError if the fit is for another tp than the key."""
        model = fitted.model
        if model.geometry.tp != key.tp:
            raise ValueError(f"the fit is for tp {model.geometry.tp}, the key for tp {key.tp}")
        return cls(
            key=key,
            index_topk=model.geometry.index_topk,
            pull_seconds=model.pull_seconds,
            host_seconds={mode.value: seconds for mode, seconds in model.host_seconds.items()},
            coefficients={**dict.fromkeys(TERMS, 0.0), **model.coefficients},
            measurements=[
                MeasuredExtend(
                    extend_lens=list(m.shape.extend_lens),
                    prefix_lens=list(m.shape.prefix_lens),
                    mode=m.mode.value,
                    seconds=m.seconds,
                )
                for m in fitted.measurements
            ],
        )

    def to_fit(self) -> Fit:
        """The model and its measurements, with residuals."""
        geometry = Geometry(self.key.tp, self.index_topk)
        host = {Mode(mode): seconds for mode, seconds in self.host_seconds.items()}
        model = CostModel(geometry, self.coefficients, self.pull_seconds, host)
        return Fit(model, tuple(m.to_measurement() for m in self.measurements))

    def dumps(self) -> str:
        """The file's text; floats keep every bit."""
        return self.model_dump_json(indent=1) + "\n"


def loads(text: str | bytes, what: str = "The calibration") -> Calibration:
    """Parse and check. Raises UsageError with one sentence that begins with ``what``."""
    try:
        return Calibration.model_validate_json(text)
    except ValidationError as error:
        raise UsageError(f"{what} cannot be used ({first_problem(error)}): {_AGAIN}.") from error


def read_calibration(path: Path, expected: CalibrationKey | None = None) -> Calibration:
    """Read a calibration file.

    Args:
        path: the file.
        expected: the key of the server that wants it; without, any will do.

    Raises:
        UsageError: it cannot be read, is not a calibration, or is one for another key; one sentence.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"The calibration {path} cannot be read ({error.strerror}): name a file of `sglang-cp calibrate --output`."
        ) from error
    calibration = loads(text, f"The calibration {path}")
    differences = calibration.key.differences(expected) if expected else []
    if differences:
        raise UsageError(f"The calibration {path} is for another server ({'; '.join(differences)}): {_AGAIN}.")
    return calibration


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write the file whole or not at all; its directory is made if need be.

    Raises:
        UsageError: the place cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, calibration.dumps().encode())
    except OSError as error:
        raise UsageError(f"The calibration {path} cannot be written ({error.strerror}): give another place.") from error
