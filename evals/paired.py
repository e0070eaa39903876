"""Two arms, the same questions: is one right more often? Pure statistics of paired right and wrong answers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.optimize import brentq
from scipy.stats import binomtest, norm

CONFIDENCE = 0.95
"""Of the interval of a difference."""

Verdict = Literal["equal", "different", "undecided"]


@dataclass(frozen=True)
class Paired:
    """How many questions both arms, one arm, or neither got right."""

    both: int
    baseline_only: int
    candidate_only: int
    neither: int

    @classmethod
    def from_answers(cls, baseline: Sequence[bool], candidate: Sequence[bool]) -> Paired:
        """From right (True) and wrong, a question each, in the same order. Raises ValueError for none or unequal."""
        if not baseline or len(baseline) != len(candidate):
            raise ValueError(f"{len(baseline)} and {len(candidate)} answers are no pairs")
        counts = Counter(zip(baseline, candidate, strict=True))
        return cls(counts[True, True], counts[True, False], counts[False, True], counts[False, False])

    @property
    def questions(self) -> int:
        return self.both + self.baseline_only + self.candidate_only + self.neither

    @property
    def difference(self) -> float:
        """Share right, candidate less baseline."""
        return (self.candidate_only - self.baseline_only) / self.questions

    @property
    def p_value(self) -> float:
        """McNemar's test in its exact, two-sided form: a disagreement goes either way like a fair coin."""
        disagreements = self.baseline_only + self.candidate_only
        return float(binomtest(self.candidate_only, disagreements).pvalue) if disagreements else 1.0

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Score interval of the difference: T. Tango, Statistics in Medicine 17 (1998), 891-908.

        Unlike Wald's it keeps its width where the arms never disagree: 20 equal answers leave room for 16 points.
        """
        z = float(norm.ppf((1 + confidence) / 2))
        low = -1.0 if self._score(-1.0) <= z else float(brentq(lambda d: self._score(d) - z, -1.0, self.difference))
        high = 1.0 if self._score(1.0) >= -z else float(brentq(lambda d: self._score(d) + z, self.difference, 1.0))
        return low, high

    def _score(self, difference: float) -> float:
        """Standardised distance of the observed difference from a supposed one; falls as that grows."""
        n, gained, lost = self.questions, self.candidate_only, self.baseline_only
        # The likeliest probability of "baseline only" under the supposed difference solves a quadratic equation.
        linear = (2 * n - gained + lost) * difference - gained - lost
        constant = -lost * difference * (1 - difference)
        likeliest = (math.sqrt(max(0.0, linear**2 - 8 * n * constant)) - linear) / (4 * n)
        variance = n * (2 * likeliest + difference * (1 - difference))
        return (gained - lost - n * difference) / math.sqrt(max(variance, 1e-12))

    def verdict(self, margin: float, alpha: float) -> Verdict:
        """Different if the p-value is under ``alpha``, equal if the whole interval is within ``margin`` of 0."""
        if self.p_value < alpha:
            return "different"
        low, high = self.interval()
        return "equal" if -margin <= low and high <= margin else "undecided"
