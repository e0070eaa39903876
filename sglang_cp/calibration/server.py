"""A server's calibration: measured by all ranks or read by the first one, and then the same text on each."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from sglang.srt.platforms import current_platform

from sglang_cp.calibration.cache import read_cached, write_cached
from sglang_cp.calibration.key import calibration_key
from sglang_cp.calibration.requests import Times
from sglang_cp.calibration.room import Room
from sglang_cp.calibration.synthetic import extend_batch, forward, keeps_hidden_states
from sglang_cp.calibration.timing import LockstepTimer
from sglang_cp.cost.calibration import Calibration, CalibrationKey, loads
from sglang_cp.cost.fit import Measurement, fit
from sglang_cp.cost.shape import ExtendShape
from sglang_cp.cost.shapes import calibration_shapes
from sglang_cp.cost.terms import Geometry, Mode
from sglang_cp.ranks import exchange, together


class Modes(Protocol):
    """What can run an extend in either mode, and pull the weights that CP needs."""

    def forced(self, mode: Mode) -> contextlib.AbstractContextManager[None]:
        """Within it every extend that can be dealt out is, or none is; nothing is counted."""
        ...

    def pull_all(self) -> None:
        """Pull the shards of all layers, one after the other, and use none."""
        ...


def server_key(scheduler: Any, shard_source: str) -> CalibrationKey:
    """The key of a running server. ``shard_source``: where its CP extends get weights from."""
    runner = scheduler.tp_worker.model_runner
    return calibration_key(
        runner.model_config.hf_config,
        device=_device_name(runner),
        dtype=_name(runner.dtype),
        kv_cache_dtype=_name(runner.kv_cache_dtype),
        tp=scheduler.tp_group.world_size,
        shard_source=shard_source,
        hidden_states_kept=keeps_hidden_states(scheduler),
    )


def cached(scheduler: Any, key: CalibrationKey) -> Calibration | None:
    """The cached calibration for ``key``, read by the first rank. Every rank makes this call."""
    return _from_first(scheduler, read_cached(key) if _is_first(scheduler) else None)


def measured(scheduler: Any, modes: Modes, key: CalibrationKey) -> Calibration:
    """Measure now, and keep the file. Every rank makes this call, while the scheduler is idle.

    Raises:
        StepFailedError: on every rank, if the extends cannot be fitted.
    """
    geometry = Geometry(key.tp, int(key.model["index_topk"]))
    measurements, pull_seconds = _measure(scheduler, modes, geometry)

    def fitted() -> Calibration | None:
        if not _is_first(scheduler):
            return None
        calibration = Calibration.from_fit(key, fit(measurements, geometry, pull_seconds=pull_seconds))
        write_cached(calibration)
        return calibration

    calibration = _from_first(scheduler, together(scheduler.tp_cpu_group, fitted))
    assert calibration is not None
    return calibration


def _measure(scheduler: Any, modes: Modes, geometry: Geometry) -> tuple[list[Measurement], float]:
    """Every shape in both modes, and the pulls alone, in seconds."""
    room, timer = Room.of(scheduler), _timer(scheduler)
    shapes = calibration_shapes(geometry, chunk_tokens=room.chunk_tokens, context_tokens=room.context_tokens)
    measurements = []
    with _as_served(scheduler):
        for shape in shapes:
            with extend_batch(scheduler, shape) as batch:
                for mode in Mode:
                    with modes.forced(mode):
                        seconds = timer.seconds(partial(forward, scheduler, batch))
                    measurements.append(Measurement(shape, mode, seconds))
        return measurements, timer.seconds(modes.pull_all)


def timed(scheduler: Any, modes: Modes, shapes: Sequence[ExtendShape], rounds: int) -> list[Times | None]:
    """Each shape's times, ``rounds`` in each mode; None for one that the server cannot hold.

    The modes take turns, and turns at being first, so that a machine that slows down does so for both. Every rank makes
    this call, while the scheduler is idle; all have the first one's times.
    """
    room, timer = Room.of(scheduler), _timer(scheduler)
    times: list[Times | None] = []
    with _as_served(scheduler):
        for shape in shapes:
            if not room.holds(shape):
                times.append(None)
                continue
            seconds: dict[Mode, list[float]] = {mode: [] for mode in Mode}
            with extend_batch(scheduler, shape) as batch:
                work = partial(forward, scheduler, batch)
                for turn in range(rounds + 1):
                    for mode in list(Mode)[:: -1 if turn % 2 else 1]:
                        with modes.forced(mode):
                            seconds[mode].append(timer.once(work))
            times.append(Times(tp=seconds[Mode.TP][1:], cp=seconds[Mode.CP][1:]))  # the first compiled kernels
    return times


def _timer(scheduler: Any) -> LockstepTimer:
    return LockstepTimer(scheduler.tp_cpu_group, scheduler.device_module.synchronize)


@contextlib.contextmanager
def _as_served(scheduler: Any) -> Iterator[None]:
    """On the stream that forwards run on, whose memory the next forward can use; the rest is given back."""
    scheduler.device_module.synchronize()
    try:
        with scheduler.forward_stream_ctx, torch.no_grad():
            yield
    finally:
        scheduler.device_module.synchronize()
        current_platform.empty_cache()


def _from_first(scheduler: Any, calibration: Calibration | None) -> Calibration | None:
    """The first rank's, on every rank: parsed from one text, so that the floats are equal to the bit."""
    text = exchange(scheduler.tp_cpu_group, calibration.dumps() if calibration else None)[0]
    return loads(text) if text else None


def _is_first(scheduler: Any) -> bool:
    return bool(scheduler.tp_group.rank_in_group == 0)


def _device_name(runner: Any) -> str:
    return platform.machine() if runner.device == "cpu" else str(torch.cuda.get_device_name(runner.gpu_id))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
