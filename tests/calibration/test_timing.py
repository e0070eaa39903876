"""What is timed, how often, and that every rank gets the first one's time."""

import pytest

from sglang_cp.calibration import timing
from sglang_cp.calibration.timing import LockstepTimer


class Clock:
    """Time moves only where a test says so."""

    def __init__(self, monkeypatch, this_ranks_extra=0.0):
        self.now, self.log = 0.0, []
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now)
        # The first rank's object comes first; this rank took longer by as much as a test says.
        monkeypatch.setattr(timing, "exchange", lambda group, mine: [mine and mine - this_ranks_extra, mine])

    def work(self, *durations):
        """Issues work that takes as long as the next of ``durations``; the device has it done at ``synchronize``."""
        queue = list(durations)

        def run():
            self.pending = queue.pop(0)
            self.log.append("work")

        return run

    pending = 0.0

    def synchronize(self):
        self.now += self.pending
        self.pending = 0.0


def seconds(clock, *durations):
    return LockstepTimer(None, clock.synchronize).seconds(clock.work(*durations))


def test_short_work_is_timed_three_times_after_a_warm_up(monkeypatch):
    clock = Clock(monkeypatch)
    assert seconds(clock, 9.0, 0.03, 0.09, 0.04) == pytest.approx(0.04)
    assert len(clock.log) == 4


def test_long_work_is_timed_once_after_a_warm_up(monkeypatch):
    clock = Clock(monkeypatch)
    assert seconds(clock, 9.0, 0.2) == pytest.approx(0.2)
    assert len(clock.log) == 2


def test_every_rank_gets_the_first_ones_time_and_repeats_as_often(monkeypatch):
    clock = Clock(monkeypatch, this_ranks_extra=0.05)
    assert seconds(clock, 9.0, 0.14, 0.12, 0.13) == pytest.approx(0.08)
    assert len(clock.log) == 4


def test_work_that_was_issued_before_is_not_counted(monkeypatch):
    clock = Clock(monkeypatch)
    clock.pending = 5.0
    assert seconds(clock, 9.0, 0.2) == pytest.approx(0.2)
