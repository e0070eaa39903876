"""Paired statistics, against published figures and against their definitions."""

import itertools
import math

import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import binom, norm

from evals.paired import Paired

# Fagerland, Lydersen and Laake, BMC Medical Research Methodology 14 (2014) 2, airway hyper-responsiveness:
# 21 pairs, Tango's interval 0.026 to 0.517 (their signs are turned), exact McNemar p = 0.070.
AIRWAYS = Paired(both=1, baseline_only=1, candidate_only=7, neither=12)
TABLES = [AIRWAYS, Paired(900, 20, 25, 374), Paired(3, 4, 0, 5), Paired(0, 10, 10, 0), Paired(5, 0, 1, 0)]


def test_published_example():
    assert AIRWAYS.interval() == pytest.approx((0.026, 0.517), abs=5e-4)
    assert AIRWAYS.p_value == pytest.approx(0.070, abs=5e-4)
    assert AIRWAYS.difference == pytest.approx(6 / 21)


@pytest.mark.parametrize("table", TABLES)
def test_mcnemar_by_its_definition(table):
    lost, gained = table.baseline_only, table.candidate_only
    tail = binom.cdf(min(lost, gained), lost + gained, 0.5)
    assert table.p_value == pytest.approx(min(1.0, 2 * tail))


def score(table: Paired, difference: float) -> float:
    """Tango's statistic with the constrained likelihood maximised by search instead of solved."""
    n, gained, lost = table.questions, table.candidate_only, table.baseline_only

    def surprise(p_lost):
        p_gained = p_lost + difference
        terms = ((lost, p_lost), (gained, p_gained), (n - lost - gained, 1 - p_lost - p_gained))
        return -sum(count * math.log(max(p, 1e-300)) for count, p in terms)

    bounds = (max(0.0, -difference), (1 - difference) / 2)
    p_lost = minimize_scalar(surprise, bounds=bounds, method="bounded", options={"xatol": 1e-10}).x
    return (gained - lost - n * difference) / math.sqrt(n * (2 * p_lost + difference - difference**2))


@pytest.mark.parametrize("table", TABLES)
def test_interval_ends_where_the_score_is_significant(table):
    low, high = table.interval(0.9)
    z = norm.ppf(0.95)
    assert low < table.difference < high or high == 1
    assert score(table, low) == pytest.approx(z, rel=1e-3)
    if high < 1:
        assert score(table, high) == pytest.approx(-z, rel=1e-3)


@pytest.mark.parametrize("questions", [1, 20, 1319])
def test_equal_answers_leave_room(questions):
    """Closed form without a disagreement: z^2 / (n + z^2)."""
    z2 = norm.ppf(0.975) ** 2
    half = z2 / (questions + z2)
    assert Paired(questions, 0, 0, 0).interval() == pytest.approx((-half, half))
    assert Paired(questions, 0, 0, 0).p_value == 1.0


def test_interval_at_the_ends_and_turned_round():
    assert Paired(0, 20, 0, 0).interval()[0] == -1.0
    for table in TABLES:
        turned = Paired(table.both, table.candidate_only, table.baseline_only, table.neither)
        assert turned.interval() == pytest.approx([-end for end in reversed(table.interval())])
        assert all(-1 <= end <= 1 for end in table.interval())


def test_from_answers_counts_pairs():
    pairs = [*itertools.product([True, False], repeat=2), (True, False), (False, True), (False, True)]
    baseline, candidate = zip(*pairs, strict=True)
    assert Paired.from_answers(baseline, candidate) == Paired(1, 2, 3, 1)
    for unusable in (([], []), ([True], [True, False])):
        with pytest.raises(ValueError, match="are no pairs"):
            Paired.from_answers(*unusable)


@pytest.mark.parametrize(
    ("table", "margin", "verdict"),
    [
        (Paired(900, 20, 25, 374), 0.02, "equal"),
        (Paired(900, 20, 25, 374), 0.014, "undecided"),  # the interval ends at +1.43 points
        (Paired(900, 25, 20, 374), 0.014, "undecided"),  # ... and here at -1.43
        (Paired(20, 0, 0, 0), 0.02, "undecided"),
        (Paired(900, 20, 60, 339), 0.5, "different"),  # significant, however wide the margin
    ],
)
def test_verdict(table, margin, verdict):
    assert table.verdict(margin, alpha=0.05) == verdict
