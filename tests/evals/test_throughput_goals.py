"""The goals: which figures are compared, and on which side of a limit they are."""

import pytest

from evals.throughput_goals import GOALS, Figures, judgements
from tests.evals.throughput_fakes import measurement

LONG, SHORT, TPOT, POOL, THROUGHPUT = GOALS


def judged(goal, *measurements, arm="sharded"):
    found = goal.judge(Figures(measurements), arm)
    return found.verdict, found.worst and round(found.worst, 4), found.where


@pytest.mark.parametrize(
    ("goal", "figure", "baseline", "length", "limit"),
    [
        (LONG, "ttft", "unpatched-cp", 16384, 0.95),
        (LONG, "ttft", "unpatched-cp", 61440, 0.95),
        (SHORT, "ttft", "unpatched-off", 1024, 1.02),
        (TPOT, "tpot", "unpatched-off", 4096, 1.02),
    ],
)
def test_latency_of_one_request_at_a_time(goal, figure, baseline, length, limit):
    def verdict(mine, baseline=baseline, concurrency=1, length=length):
        theirs = measurement(baseline, length, concurrency, **{figure: 100.0})
        return judged(goal, measurement("sharded", length, concurrency, **{figure: mine}), theirs)

    assert verdict(100 * limit) == ("reached", limit, f"{length:,} tokens")
    assert verdict(100 * limit + 1) == ("missed", round(limit + 0.01, 4), f"{length:,} tokens")
    assert verdict(100.0, concurrency=4)[0] == "not measured"
    assert verdict(100.0, baseline="off")[0] == "not measured"
    if goal is not TPOT:
        assert verdict(100.0, length=4096)[0] == "not measured"


def test_the_worst_length_decides():
    arms = [measurement("unpatched-cp", length, ttft=100.0) for length in (16384, 40960, 61440)]
    arms += [
        measurement("sharded", length, ttft=ttft) for length, ttft in ((16384, 90.0), (40960, 96.0), (61440, 80.0))
    ]
    assert judged(LONG, *arms) == ("missed", 0.96, "40,960 tokens")


def test_throughput_is_compared_with_the_better_unpatched_arm_at_every_point():
    arms = [
        measurement("unpatched-off", 1024, 4, total=200.0),
        measurement("unpatched-cp", 1024, 4, total=100.0),
        measurement("unpatched-off", 4096, 16, total=100.0),
        measurement("unpatched-cp", 4096, 16, total=200.0),
        measurement("sharded", 1024, 4, total=199.0),
        measurement("auto", 1024, 4, total=150.0),
    ]
    assert judged(THROUGHPUT, *arms, measurement("sharded", 4096, 16, total=198.0)) == (
        "reached",
        0.99,
        "4,096 tokens x 16",
    )
    assert judged(THROUGHPUT, *arms, measurement("sharded", 4096, 16, total=190.0))[:2] == ("missed", 0.95)
    assert judged(THROUGHPUT, *arms, arm="auto") == ("missed", 0.75, "1,024 tokens x 4")
    alone = [arm for arm in arms if arm.point.arm != "unpatched-cp"]
    assert judged(THROUGHPUT, *alone)[0] == "not measured"


def test_the_smallest_pool_counts():
    off = measurement("unpatched-off", pool=1000)
    pools = [measurement("sharded", length, pool=pool) for length, pool in ((1024, 999), (4096, 995), (16384, 1001))]
    assert judged(POOL, off, *pools) == ("reached", 0.995, "995 tokens")
    assert judged(POOL, off, measurement("sharded", pool=994)) == ("missed", 0.994, "994 tokens")


def test_every_goal_is_judged_for_both_arms_that_it_is_for():
    found = judgements(Figures([measurement("unpatched-off"), measurement("replicated", pool=1)]))
    assert [(j.goal, j.arm) for j in found] == [(goal, arm) for goal in GOALS for arm in ("sharded", "auto")]
    assert {j.verdict for j in found} == {"not measured"}
