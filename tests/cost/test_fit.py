"""The fit recovers what made the times, says how far off it is, and refuses what it cannot fit."""

import math
import random

import pytest

from sglang_cp.cost.fit import Measurement, fit
from sglang_cp.cost.model import CostModel
from sglang_cp.cost.shape import ExtendShape
from sglang_cp.cost.shapes import calibration_shapes
from sglang_cp.cost.terms import Geometry, Mode
from sglang_cp.errors import UsageError

GEOMETRY = Geometry(tp=4, index_topk=2048)
COEFFICIENTS = {
    "launch_tp": 4e-3,
    "launch_cp": 6e-3,
    "rows": 7e-6,
    "repeated_rows": 3e-6,
    "index_rows": 6e-7,
    "scoring": 2e-10,
    "attention": 1e-10,
    "repeated_attention": 5e-10,
}
SHAPES = calibration_shapes(GEOMETRY, chunk_tokens=8192, context_tokens=131072)


def measured(truth, shapes=SHAPES, noise=0.0, repeats=1):
    rng = random.Random(1)
    return [
        Measurement(shape, mode, truth.seconds(shape, mode) * rng.gauss(1, noise))
        for shape in shapes
        for mode in Mode
        for _ in range(repeats)
    ]


@pytest.mark.parametrize("host", [{}, {Mode.TP: 0.02, Mode.CP: 0.03}], ids=["device bound", "short ones host bound"])
def test_known_coefficients_are_recovered_from_the_calibration_shapes(host):
    truth = CostModel(GEOMETRY, COEFFICIENTS, host_seconds=host)
    fitted = fit(measured(truth), GEOMETRY)
    assert fitted.model.coefficients == pytest.approx(COEFFICIENTS, rel=1e-6)
    assert fitted.model.host_seconds == pytest.approx(host)
    assert fitted.worst < 1e-9


def test_extends_that_wait_for_their_pulls_do_not_teach_the_terms():
    truth = CostModel(GEOMETRY, COEFFICIENTS, pull_seconds=0.012)
    bound = [shape for shape in SHAPES if truth.seconds(shape, Mode.CP) == pytest.approx(0.012)]
    assert bound
    fitted = fit(measured(truth), GEOMETRY, pull_seconds=0.012)
    assert fitted.model.coefficients == pytest.approx(COEFFICIENTS, rel=1e-6)
    assert fitted.model.host_seconds == {}
    assert fitted.worst < 1e-9


def test_noise_shows_in_the_residuals_and_hardly_in_the_predictions():
    truth = CostModel(GEOMETRY, COEFFICIENTS)
    fitted = fit(measured(truth, noise=0.02, repeats=3), GEOMETRY)
    assert 0.005 < fitted.rms < 0.03
    assert fitted.rms <= fitted.worst < 0.1
    far = ExtendShape.of([3000, 5000], [0, 20_000])
    for mode in Mode:
        assert fitted.model.seconds(far, mode) == pytest.approx(truth.seconds(far, mode), rel=0.05)


def test_relative_errors_count_so_that_short_extends_do_too():
    times = [
        Measurement(ExtendShape.of([rows]), mode, rows * seconds_a_row)
        for rows, seconds_a_row in ((12, 2e-6), (12_000, 1e-6))
        for mode in Mode
    ]
    # 2 us a row for the short one, 1 us for the long one: the least squared relative error lies between.
    coefficient = fit(times, GEOMETRY, terms=["rows"]).model.coefficients["rows"]
    assert coefficient == pytest.approx((1 / 2e-6 + 1 / 1e-6) / (1 / 2e-6**2 + 1 / 1e-6**2), rel=1e-3)


def test_no_coefficient_is_negative_even_if_cp_looks_free():
    times = [
        Measurement(ExtendShape.of([n]), mode, 1.0 if mode is Mode.TP else 0.1) for n in (100, 900) for mode in Mode
    ]
    fitted = fit(times, GEOMETRY, terms=["rows", "repeated_rows"])
    assert min(fitted.model.coefficients.values()) >= 0


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 0.0, -1.0])
def test_a_time_that_is_none_is_refused(seconds):
    with pytest.raises(
        UsageError, match=r"A measured extend of 64 rows \(tp\) took .* which is no time: measure again\."
    ):
        fit([Measurement(ExtendShape.of([64]), Mode.TP, seconds)], GEOMETRY)


def test_too_few_points_are_refused_and_repeats_are_no_points():
    truth = CostModel(GEOMETRY, COEFFICIENTS)
    with pytest.raises(UsageError, match="6 measured points are too few to fit 8 terms"):
        fit(measured(truth, SHAPES[:3], repeats=9), GEOMETRY)


def test_a_mode_that_was_not_measured_is_refused():
    times = [m for m in measured(CostModel(GEOMETRY, COEFFICIENTS)) if m.mode is Mode.TP]
    with pytest.raises(UsageError, match="No usable cp extend was measured"):
        fit(times, GEOMETRY)


@pytest.mark.parametrize("tp", [2, 8])
def test_calibration_shapes_fit_chunk_and_context(tp):
    shapes = calibration_shapes(Geometry(tp, 32), chunk_tokens=100, context_tokens=120)
    assert len(shapes) == len(set(shapes)) >= 6
    assert all(tp <= shape.rows <= 100 and shape.longest <= 120 for shape in shapes)
    assert {shape.longest <= 32 for shape in shapes} == {True, False}
