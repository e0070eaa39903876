"""Memory of a server's processes over time, and by how much it grew."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]
from scipy import stats

LEAST_SAMPLES = 5


@dataclass(frozen=True)
class Sample:
    """Seconds since sampling began, and the sums over all processes in bytes.

    ``rss`` counts a page once for each process that has it, ``pss`` once in all.
    """

    seconds: float
    processes: int
    rss: int
    pss: int


def measure(pid: int, since: float) -> Sample:
    """Of a process and all that it started. ``since``: a time of ``time.monotonic``."""
    processes = rss = pss = 0
    for process in _tree(pid):
        # One that ends meanwhile counts as nothing.
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            memory = process.memory_full_info()
            processes, rss, pss = processes + 1, rss + memory.rss, pss + memory.pss
    return Sample(round(time.monotonic() - since, 1), processes, rss, pss)


@contextlib.contextmanager
def sampling(pid: int, interval_s: float) -> Iterator[list[Sample]]:
    """A list to which a sample is added every ``interval_s`` seconds."""
    samples: list[Sample] = []
    ended = threading.Event()
    since = time.monotonic()

    def run() -> None:
        while not ended.wait(interval_s):
            samples.append(measure(pid, since))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def growth(samples: Sequence[Sample], warm_up_s: float) -> float:
    """By which share PSS grew past the first ``warm_up_s`` seconds: a robust (Theil-Sen) slope over that time.

    Raises:
        ValueError: with fewer than LEAST_SAMPLES samples past it.
    """
    past = [sample for sample in samples if sample.seconds >= warm_up_s]
    if len(past) < LEAST_SAMPLES:
        raise ValueError(f"{len(past)} samples past {warm_up_s:.0f} s say nothing about growth")
    seconds = [sample.seconds for sample in past]
    slope, intercept = stats.theilslopes([sample.pss for sample in past], seconds)[:2]
    return float(slope * (seconds[-1] - seconds[0]) / (intercept + slope * seconds[0]))


def _tree(pid: int) -> list[psutil.Process]:
    try:
        leader = psutil.Process(pid)
        return [leader, *leader.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
