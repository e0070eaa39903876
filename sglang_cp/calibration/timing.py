"""Seconds of work that all ranks do together: device-synchronised, in lockstep, the same float on every rank."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch.distributed as dist

from sglang_cp.ranks import exchange

_SHORT_SECONDS = 0.1
"""Work up to here is timed three times, for its share of noise is larger; longer work once."""
_REPEATS = 3


class LockstepTimer:
    """Times work on every rank of a group."""

    def __init__(self, group: dist.ProcessGroup, synchronize: Callable[[], None]) -> None:
        """
        Args:
            group: on a backend for CPU tensors; every rank of it times the same work in the same order.
            synchronize: returns when the device has done all that was issued.
        """
        self._group = group
        self._synchronize = synchronize

    def seconds(self, work: Callable[[], None]) -> float:
        """Wall time of ``work``, after one run that compiles what needs compiling."""
        self.once(work)
        seconds = [self.once(work)]
        if seconds[0] <= _SHORT_SECONDS:
            seconds += [self.once(work) for _ in range(_REPEATS - 1)]
        return median(seconds)

    def once(self, work: Callable[[], None]) -> float:
        """Wall time of one run as the first rank has it."""
        self._synchronize()
        exchange(self._group, None)  # all start together
        start = time.perf_counter()
        work()
        self._synchronize()
        first_ranks: float = exchange(self._group, time.perf_counter() - start)[0]
        return first_ranks
