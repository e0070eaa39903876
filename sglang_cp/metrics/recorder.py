"""Follows each extend batch of a scheduler from its decision to its end, and publishes what it took."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from sglang_cp.cost.calibration import Calibration
from sglang_cp.cost.model import CostModel
from sglang_cp.cost.shape import ExtendShape
from sglang_cp.cost.terms import Mode
from sglang_cp.decision import Decision
from sglang_cp.layout import TokenLayout
from sglang_cp.metrics.clock import Clock, DeviceClock, HostClock
from sglang_cp.metrics.definitions import Name, Series
from sglang_cp.metrics.pulls import MeasuredSource, PullRecord


@dataclass
class _Extend:
    """One extend batch, from its first decision on."""

    start: Any
    pulls: PullRecord
    shape: ExtendShape | None
    decision_seconds: float = 0.0
    mode: Mode = Mode.TP
    end: Any = None


class Recorder:
    """Of one scheduler process, from when it serves."""

    def __init__(self, strategy: Any, clock: Clock, series: Series) -> None:
        """``strategy``: this process's; its decisions and pulls are timed from now on."""
        self._strategy = strategy
        self._clock = clock
        self._series = series
        self._decide: Callable[[int, Any], Decision] = strategy.decide
        self._running: _Extend | None = None
        self._issued: deque[_Extend] = deque()
        self._fitted: tuple[Calibration, CostModel] | None = None
        strategy.decide = self._timed_decide
        strategy.placement.measure_pulls(lambda source: MeasuredSource(source, self._pulls))

    def extend_issued(self, decision: Decision, rows: int, stream: Any) -> None:
        """After an extend of ``rows`` new tokens was issued on ``stream``."""
        mode = Mode.CP if decision.context_parallel else Mode.TP
        self._series.add(Name.EXTENDS, 1, mode=mode, reason=decision.reason)
        self._series.add(Name.NEW_TOKENS, rows, mode=mode, reason=decision.reason)
        self._series.observe(Name.RANK_ROWS, self._rows_of_this_rank(mode, rows), mode=mode)
        extend, self._running = self._running, None
        if extend:
            extend.mode, extend.end = mode, self._clock.mark(stream)
            self._issued.append(extend)

    def publish(self) -> None:
        """The times of extends that are done by now; with the device ahead of the host, the latest are not."""
        while self._issued and self._clock.done(self._issued[0].end):
            self._publish(self._issued.popleft())

    def _publish(self, extend: _Extend) -> None:
        mode, series = extend.mode, self._series
        seconds = self._clock.seconds(extend.start, extend.end)
        series.observe(Name.DECISION, extend.decision_seconds)
        series.observe(Name.EXTEND, seconds, mode=mode)
        if mode is Mode.CP:
            series.add(Name.PULLED_BYTES, extend.pulls.num_bytes)
            series.observe(Name.PULL_EXPOSED, extend.pulls.exposed_seconds())
        model = self._model()
        if model and extend.shape:
            predicted = model.seconds(extend.shape, mode)
            series.observe(Name.PREDICTED, predicted, mode=mode)
            if predicted > 0:
                series.observe(Name.RATIO, seconds / predicted, mode=mode)

    def _timed_decide(self, num_tokens: int, forward_batch: Any) -> Decision:
        """In place of the strategy's, which SGLang asks several times in one forward."""
        if not forward_batch.forward_mode.is_context_parallel_extend():
            return self._decide(num_tokens, forward_batch)
        extend = self._running or _Extend(self._clock.mark(), PullRecord(self._clock), _shape(forward_batch))
        start = time.perf_counter()
        decision = self._decide(num_tokens, forward_batch)
        extend.decision_seconds += time.perf_counter() - start
        # Calibration's extends are no one's.
        self._running = None if self._strategy.is_forced else extend
        return decision

    def _rows_of_this_rank(self, mode: Mode, rows: int) -> int:
        if mode is Mode.TP:
            return rows
        return TokenLayout(rows, self._strategy.cp_size, self._strategy.cp_rank).local_rows

    def _pulls(self) -> PullRecord | None:
        return self._running.pulls if self._running else None

    def _model(self) -> CostModel | None:
        """Of the calibration that the server has now, if any: unpacked once, not for each extend."""
        calibration = self._strategy.calibration
        if calibration is None:
            return None
        if self._fitted is None or self._fitted[0] is not calibration:
            self._fitted = calibration, calibration.to_fit().model
        return self._fitted[1]


def make_recorder(scheduler: Any, strategy: Any) -> Recorder:
    """For a scheduler whose own metrics are enabled, and a strategy that has loaded its model."""
    runner = scheduler.tp_worker.model_runner
    clock = HostClock() if runner.device == "cpu" else DeviceClock(torch.get_device_module(runner.device))
    return Recorder(strategy, clock, Series(scheduler.metrics_collector))


def _shape(forward_batch: Any) -> ExtendShape | None:
    """Its lengths, unless the host does not know them."""
    new, totals = forward_batch.extend_seq_lens_cpu, forward_batch.seq_lens_cpu
    if new is None or totals is None:
        return None
    return ExtendShape.of(new, [int(total) - length for total, length in zip(totals, new, strict=True)])
