"""The goals for CP against unpatched SGLang, measured side by side in one run: pure functions of its figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from evals.throughput_arms import ARMS, AUTO, SHARDED, UNPATCHED_CP, UNPATCHED_OFF
from evals.throughput_results import Measurement

JUDGED = (SHARDED.name, AUTO.name)
"""The arms that the goals are for."""

Verdict = Literal["reached", "missed", "not measured"]
Ratios = dict[str, float]
"""By the place where it was measured, an arm's figure over the one that it is compared with."""


class Figures:
    """Measurements by arm, input tokens and concurrency."""

    def __init__(self, measurements: Iterable[Measurement]) -> None:
        self._by_place = {(m.point.arm, m.point.input_tokens, m.point.concurrency): m for m in measurements}

    def get(self, arm: str, input_tokens: int, concurrency: int) -> Measurement | None:
        return self._by_place.get((arm, input_tokens, concurrency))

    def of(self, arm: str) -> list[Measurement]:
        return [m for (name, _, _), m in self._by_place.items() if name == arm]

    @property
    def arms(self) -> list[str]:
        """Those that were measured, in the order of `ARMS`."""
        return [arm for arm in ARMS if self.of(arm)]

    @property
    def workloads(self) -> list[tuple[int, int]]:
        """Input tokens and concurrency, sorted."""
        return sorted({(length, concurrency) for _, length, concurrency in self._by_place})

    def throughput_ratio(self, measured: Measurement) -> float | None:
        """Total throughput over that of the better unpatched arm; None unless both are there."""
        place = measured.point.input_tokens, measured.point.concurrency
        off, cp = (self.get(arm.name, *place) for arm in (UNPATCHED_OFF, UNPATCHED_CP))
        return None if off is None or cp is None else measured.total_tok_s / max(off.total_tok_s, cp.total_tok_s)


@dataclass(frozen=True)
class Goal:
    """A bound on every one of the ratios.

    Attributes:
        text: what is compared with what.
        limit: of each ratio.
        at_most: whether the limit is the largest ratio allowed, else the smallest.
        ratios: of an arm.
    """

    text: str
    limit: float
    at_most: bool
    ratios: Callable[[Figures, str], Ratios]

    def judge(self, figures: Figures, arm: str) -> Judgement:
        """By the worst ratio; a goal with nothing to compare is not measured."""
        ratios = self.ratios(figures, arm)
        if not ratios:
            return Judgement(self, arm, None, "", "not measured")
        where = (max if self.at_most else min)(ratios, key=lambda place: ratios[place])
        worst = ratios[where]
        reached = worst <= self.limit if self.at_most else worst >= self.limit
        return Judgement(self, arm, worst, where, "reached" if reached else "missed")


@dataclass(frozen=True)
class Judgement:
    """Whether an arm reached a goal: its worst ratio, where that was, and the verdict."""

    goal: Goal
    arm: str
    worst: float | None
    where: str
    verdict: Verdict


def _alone(
    figure: Callable[[Measurement], float], baseline: str, lengths: Sequence[int] | None
) -> Callable[[Figures, str], Ratios]:
    """Ratios of a figure with one request at a time. ``lengths``: None for all that were measured."""

    def ratios(figures: Figures, arm: str) -> Ratios:
        found = {}
        for mine in figures.of(arm):
            length, concurrency = mine.point.input_tokens, mine.point.concurrency
            theirs = figures.get(baseline, length, concurrency)
            if concurrency == 1 and theirs is not None and (lengths is None or length in lengths):
                found[f"{length:,} tokens"] = figure(mine) / figure(theirs)
        return found

    return ratios


def _pool(figures: Figures, arm: str) -> Ratios:
    """Servers of one arm may be several, if a run was continued: the smallest pool counts."""
    mine, theirs = ([m.pool_tokens for m in figures.of(name)] for name in (arm, UNPATCHED_OFF.name))
    return {f"{min(mine):,} tokens": min(mine) / min(theirs)} if mine and theirs else {}


def _throughput(figures: Figures, arm: str) -> Ratios:
    ratios = {
        f"{m.point.input_tokens:,} tokens x {m.point.concurrency}": figures.throughput_ratio(m) for m in figures.of(arm)
    }
    return {where: ratio for where, ratio in ratios.items() if ratio is not None}


def _median_ttft(measurement: Measurement) -> float:
    return measurement.ttft_ms.median


def _median_tpot(measurement: Measurement) -> float:
    return measurement.tpot_ms.median


GOALS = (
    Goal(
        "TTFT from 16,384 tokens on, one request / unpatched CP",
        0.95,
        True,
        _alone(_median_ttft, UNPATCHED_CP.name, (16384, 40960, 61440)),
    ),
    Goal(
        "TTFT at 1,024 tokens, one request / unpatched off",
        1.02,
        True,
        _alone(_median_ttft, UNPATCHED_OFF.name, (1024,)),
    ),
    Goal(
        "TPOT at every length, one request / unpatched off", 1.02, True, _alone(_median_tpot, UNPATCHED_OFF.name, None)
    ),
    Goal("KV pool / unpatched off", 0.995, False, _pool),
    Goal("total throughput at every point / better unpatched arm", 0.99, False, _throughput),
)


def judgements(figures: Figures) -> list[Judgement]:
    """Each goal for each arm that it is for."""
    return [goal.judge(figures, arm) for goal in GOALS for arm in JUDGED]
