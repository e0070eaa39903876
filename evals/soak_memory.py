"""Memory of a server's processes over time, and by how much it grew."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from scipy import stats

LEAST_SAMPLES = 5


@dataclass(frozen=True)
class Sample:
    """Seconds since sampling began, and the sums over all processes in bytes.

    ``rss`` counts a page once for each process that has it. ``own`` counts anonymous and shared memory, a page once in
    all; pages of files are left out, for how much of them falls to a process depends on what else runs on the machine.
    """

    seconds: float
    processes: int
    rss: int
    own: int


def measure(pid: int, since: float) -> Sample:
    """Of a process and all that it started. ``since``: a time of ``time.monotonic``."""
    processes = rss = own = 0
    for process in _tree(pid):
        # One that ends meanwhile, or has ended, counts as nothing.
        with contextlib.suppress(OSError):
            sizes = _sizes(Path(f"/proc/{process.pid}/smaps_rollup").read_text())
            if "Rss" in sizes:
                processes += 1
                rss += sizes["Rss"]
                own += sizes["Pss_Anon"] + sizes["Pss_Shmem"]
    return Sample(round(time.monotonic() - since, 1), processes, rss, own)


def _sizes(rollup: str) -> dict[str, int]:
    """Bytes by name from the text of a smaps_rollup."""
    return {name: int(kib) << 10 for name, kib in re.findall(r"^(\w+): +(\d+) kB$", rollup, re.MULTILINE)}


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
    """By which share own memory grew past the first ``warm_up_s`` seconds: a robust (Theil-Sen) slope over that time.

    Raises:
        ValueError: with fewer than LEAST_SAMPLES samples past it.
    """
    past = [sample for sample in samples if sample.seconds >= warm_up_s]
    if len(past) < LEAST_SAMPLES:
        raise ValueError(f"{len(past)} samples past {warm_up_s:.0f} s say nothing about growth")
    seconds = [sample.seconds for sample in past]
    slope, intercept = stats.theilslopes([sample.own for sample in past], seconds)[:2]
    return float(slope * (seconds[-1] - seconds[0]) / (intercept + slope * seconds[0]))


def _tree(pid: int) -> list[psutil.Process]:
    try:
        leader = psutil.Process(pid)
        return [leader, *leader.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
