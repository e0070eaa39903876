"""What an extend's pulls bring, and how long it does nothing but wait for them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from sglang_cp.metrics.clock import Clock
from sglang_cp.weights.shards import Shard
from sglang_cp.weights.source import Pull, ShardSource


class PullRecord:
    """The pulls of one extend."""

    def __init__(self, clock: Clock) -> None:
        self.num_bytes = 0
        """Bytes that came from other ranks."""
        self._clock = clock
        self._spans: list[tuple[Any, Any]] = []

    @contextlib.contextmanager
    def exposed(self) -> Iterator[None]:
        """What the computing stream (or the CPU) spends within is not hidden by computing."""
        start = self._clock.mark()
        yield
        self._spans.append((start, self._clock.mark()))

    def exposed_seconds(self) -> float:
        """Sum over all layers, once they are done."""
        return sum(self._clock.seconds(start, end) for start, end in self._spans)


class MeasuredSource:
    """A shard source whose pulls go on a record while there is one."""

    def __init__(self, source: ShardSource, record: Callable[[], PullRecord | None]) -> None:
        """``record``: of the extend that runs now; None if it is none that is measured."""
        self._source = source
        self._record = record
        self.name = source.name

    def pull(self, layer: int, shards: Sequence[Shard], into: Mapping[str, torch.Tensor]) -> Pull:
        record = self._record()
        if record is None:
            return self._source.pull(layer, shards, into)
        with record.exposed():
            pull = self._source.pull(layer, shards, into)
        record.num_bytes += sum(into[shard.name].numel() - shard.num_bytes for shard in shards)
        return _MeasuredPull(pull, record)

    def refresh(self) -> None:
        self._source.refresh()


class _MeasuredPull:
    def __init__(self, pull: Pull, record: PullRecord) -> None:
        self._pull = pull
        self._record = record

    def wait(self) -> None:
        with self._record.exposed():
            self._pull.wait()
