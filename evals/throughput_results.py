"""The results of a throughput run: a JSON line for the setup, then one for each point, appended as they are measured.

A run that is cut off leaves whole lines and at most one half, at the end: it is dropped, and its point measured again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError

from sglang_cp.errors import UsageError


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Setup(_Record):
    """What must not change between the points of one file.

    Attributes:
        model: the checkpoint's config.json.
        seed: of the prompts.
        min_tokens: ``--cp-min-tokens`` of the arm with a fixed threshold, None for the server's default.
        server_args: arguments that every server gets besides its own.
        versions: by component.
        machine: devices and how they are connected.
    """

    model: Mapping[str, Any]
    tp_size: int
    device: str
    output_tokens: int
    seed: int
    rounds: int
    least_prompts: int
    min_tokens: int | None
    server_args: list[str]
    versions: Mapping[str, str | None]
    machine: Mapping[str, Any]


class Point(_Record):
    """A workload for one arm: ``prompts`` requests of exactly so many tokens, ``concurrency`` at a time."""

    arm: str
    input_tokens: int
    output_tokens: int
    concurrency: int
    prompts: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.arm}-{self.input_tokens}-c{self.concurrency}"


class Quantiles(_Record):
    """Of a time over the requests of a point."""

    median: FiniteFloat
    p99: FiniteFloat


class Measurement(_Record):
    """One point, measured.

    Attributes:
        sglang: version of the server.
        server_args: of ``sglang.launch_server``, besides the model and ports.
        duration_s: of the whole point, without the warm-up request.
        total_tok_s: input and output tokens a second, of all ranks together.
        output_tok_s: output tokens a second.
        ttft_ms, tpot_ms, e2e_ms: of a request: time to the first token, for each later one, and to the last.
        cp_counters: change of the CP counters, warm-up included; None for a server without sglang-cp.
        must_deal_out: whether its prompts are so long that the arm must have dealt them out.
        pool_tokens: tokens that fit the KV pool.
        memory_gb: of a rank, as SGLang reports it.
        cp_memory: bytes of weights and of CP's buffers; None for a server without sglang-cp.
    """

    point: Point
    sglang: str
    server_args: list[str]
    duration_s: FiniteFloat
    total_tok_s: FiniteFloat
    output_tok_s: FiniteFloat
    ttft_ms: Quantiles
    tpot_ms: Quantiles
    e2e_ms: Quantiles
    cp_counters: Mapping[str, int] | None
    must_deal_out: bool
    pool_tokens: int
    memory_gb: Mapping[str, FiniteFloat]
    cp_memory: Mapping[str, int | str | None] | None

    @property
    def interactivity_tok_s(self) -> float:
        """Output tokens a second that one user sees: output tokens over median end-to-end latency."""
        return self.point.output_tokens / self.e2e_ms.median * 1e3

    @property
    def problem(self) -> str | None:
        """One sentence if CP took no part where it must, or part where it is off."""
        if self.cp_counters is None:
            return None
        extends = self.cp_counters["cp_extends"]
        if self.must_deal_out and extends == 0:
            return f"{self.point.name}: no extend was dealt out: CP did not take part."
        if self.point.arm == "off" and extends > 0:
            return f"{self.point.name}: CP is off, yet {extends} extends were dealt out."
        return None


class ResultsFile:
    """A file of results.

    Attributes:
        setup: as in the file, None while there is none.
        measurements: the points in it.
    """

    setup: Setup | None
    measurements: list[Measurement]
    _whole_bytes: int

    def __init__(self, path: Path) -> None:
        """Read ``path``, which need not exist. Raises UsageError if it holds something else."""
        self.path = path
        self._read()

    @contextmanager
    def writing(self, setup: Setup) -> Iterator[None]:
        """Let points of this setup follow those in the file; without any, no file is left.

        Raises:
            UsageError: the points in the file are of another setup, or another process adds to them.
        """
        try:
            self._file = self.path.open("ab")
        except OSError as error:
            raise UsageError(f"{self.path} cannot be written ({error.strerror}): name another --output.") from error
        with self._file:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UsageError(
                    f"{self.path} is written by another run: wait for it or name another --output."
                ) from error
            self._read()
            if self.setup is not None and (names := _differing(self.setup, setup)):
                raise UsageError(
                    f"{self.path} was measured with another setup ({', '.join(names)}): its points cannot be compared "
                    "with new ones, name another --output."
                )
            self._unwritten = b"" if self.setup else _line(setup)
            self.setup = setup
            try:
                yield
            finally:
                if not self.measurements:
                    self.path.unlink()

    def append(self, measurement: Measurement) -> None:
        """Add one point, in place of half a line at the end; inside of :meth:`writing`."""
        content = self._unwritten + _line(measurement)
        self._file.truncate(self._whole_bytes)
        self._file.write(content)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._whole_bytes += len(content)
        self._unwritten = b""
        self.measurements.append(measurement)

    def missing(self, points: Sequence[Point]) -> list[Point]:
        """Those that are not in the file."""
        present = {measurement.point for measurement in self.measurements}
        return [point for point in points if point not in present]

    def _read(self) -> None:
        self.setup = None
        self.measurements = []
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            content = b""
        except OSError as error:
            raise UsageError(f"{self.path} cannot be read ({error.strerror}): name another --output.") from error
        whole, newline, _ = content.rpartition(b"\n")
        self._whole_bytes = len(whole) + len(newline)
        for number, line in enumerate(whole.split(b"\n") if newline else (), 1):
            try:
                if number == 1:
                    self.setup = Setup.model_validate_json(line)
                else:
                    self.measurements.append(Measurement.model_validate_json(line))
            except ValidationError as error:
                raise UsageError(
                    f"Line {number} of {self.path} is no result of a throughput run ({error.errors()[0]['msg']}): "
                    "delete that line, or name another --output."
                ) from error


def _line(record: _Record) -> bytes:
    return record.model_dump_json().encode() + b"\n"


def _differing(one: Setup, other: Setup) -> list[str]:
    """Names of the fields, and of the keys in a field of several, in which two setups differ."""
    names = []
    for field, value in one.model_dump().items():
        counterpart = other.model_dump()[field]
        if isinstance(value, dict):
            keys = sorted({*value, *counterpart})
            names += [f"{field}: {key}" for key in keys if value.get(key) != counterpart.get(key)]
        elif value != counterpart:
            names.append(field)
    return names
