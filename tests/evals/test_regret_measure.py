"""Timing a grid on a server: what is asked for, and what is left out."""

import pytest

from evals.regret_measure import measure
from evals.regret_times import Timed
from sglang_cp.calibration.requests import Times
from sglang_cp.cost.shape import ExtendShape
from sglang_cp.errors import UsageError
from tests.calibration.examples import cp_from_100_tokens, key

KNOWN, SHORT, LONG = ExtendShape.of([200]), ExtendShape.of([50]), ExtendShape.of([50_000])


class Client:
    """A server that holds up to 1,000 rows."""

    def __init__(self, *, measured=True, device="cuda"):
        self.found = cp_from_100_tokens(key()) if measured else None
        self.server_info = {"device": device}
        self.asked, self.calibrated = [], 0

    def calibration(self):
        return self.found

    def calibrate(self):
        self.calibrated += 1
        self.found = cp_from_100_tokens(key())

    def time(self, shapes, rounds):
        self.asked += [(*shape.extend_lens, rounds) for shape in shapes]
        return [Times(tp=[2.0] * rounds, cp=[1.0] * rounds) if shape.rows <= 1000 else None for shape in shapes]


def test_the_grid_is_timed_but_for_what_the_calibration_knows_or_the_server_cannot_hold():
    client, done = Client(), []
    measured = measure(client, [KNOWN, SHORT, LONG], 3, done.append)
    assert client.asked == [(50, 3), (50_000, 3)]
    assert done == [0, 1]
    assert measured.timed == [Timed(SHORT, 2.0, 1.0, 0.0)]
    assert (measured.fitted, measured.too_large, measured.on_cpu) == (1, 1, False)
    assert client.calibrated == 0


def test_a_server_with_a_fixed_threshold_that_never_measured_does_so_first():
    client = Client(measured=False, device="cpu")
    measured = measure(client, [SHORT], 1, lambda _: None)
    assert client.calibrated == 1
    assert measured.calibration == cp_from_100_tokens(key())
    assert measured.on_cpu


def test_a_server_that_can_hold_nothing_of_the_grid_is_a_sentence():
    with pytest.raises(UsageError, match="can hold no extend of the grid"):
        measure(Client(), [LONG], 1, lambda _: None)
