"""Time on what computes: the CPU itself, or a device by events that are read when they are done."""

from __future__ import annotations

import time
from typing import Any, Protocol


class Clock(Protocol):
    """Marks moments in the work that is issued; neither call waits for it."""

    def mark(self, stream: Any = None) -> Any:
        """The moment when all that was issued before is done. ``stream``: by default the current one."""
        ...

    def done(self, mark: Any) -> bool:
        """Whether that moment has come."""
        ...

    def seconds(self, start: Any, end: Any) -> float:
        """Between two moments that have come."""
        ...


class HostClock:
    """Where work is done when it is issued."""

    def mark(self, stream: Any = None) -> float:
        return time.perf_counter()

    def done(self, mark: float) -> bool:
        return True

    def seconds(self, start: float, end: float) -> float:
        return end - start


class DeviceClock:
    """Where work is done on streams."""

    def __init__(self, device_module: Any) -> None:
        """``device_module``: torch.cuda, or what is like it."""
        self._device_module = device_module

    def mark(self, stream: Any = None) -> Any:
        event = self._device_module.Event(enable_timing=True)
        event.record(stream or self._device_module.current_stream())
        return event

    def done(self, mark: Any) -> bool:
        return bool(mark.query())

    def seconds(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end)) / 1e3
