"""Whether a candidate differs from plain TP by more than plain TP differs from itself: pure, for hardware that rounds.

Two answers of one server differ where kernels sum in another order from run to run, and those of tp 1 and tp 2 because
the same sums are cut elsewhere. CP is one more cut of the same sums, so it may differ as much as those, not more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evals.answers import Answer

SLACK = 1.25
"""How much larger than the baselines' a difference may be: a mean over a few thousand logprobs scatters itself."""
FLOOR_NATS = 2**-9
"""What may always differ on average: half of the last bit that BF16 keeps of a logit between 1 and 2."""
DEVIATIONS = 3.0
"""Standard deviations that a share of equal answers may lie below the baseline's."""


@dataclass(frozen=True)
class Noise:
    """How two runs of the same prompts differ.

    Attributes:
        prompts: how many were compared.
        same_answers: of them, those with the same greedy tokens.
        same_tokens: share of output tokens before the first that differs.
        mean_nats: mean absolute difference of input logprobs; NaN if there are none.
        p99_nats: 99th percentile of it.
        max_nats: largest of it.
    """

    prompts: int
    same_answers: int
    same_tokens: float
    mean_nats: float
    p99_nats: float
    max_nats: float

    @classmethod
    def between(cls, first: Sequence[Answer], second: Sequence[Answer]) -> Noise:
        """Compare answers to the same prompts, in the same order. Raises ValueError where lengths differ."""
        pairs = list(zip(first, second, strict=True))
        agreeing = [_agreeing(a.tokens, b.tokens) for a, b in pairs]
        total = sum(len(a.tokens) for a, _ in pairs)
        gaps = np.abs(
            np.concatenate([np.subtract(a.input_logprobs, b.input_logprobs) for a, b in pairs])
            if pairs
            else np.empty(0)
        )
        # A comparison with NaN is false: it must not pass for no difference.
        mean, p99, largest = (gaps.mean(), np.quantile(gaps, 0.99), gaps.max()) if gaps.size else (math.nan,) * 3
        return cls(
            prompts=len(pairs),
            same_answers=sum(count == len(a.tokens) for count, (a, _) in zip(agreeing, pairs, strict=True)),
            same_tokens=sum(agreeing) / total if total else math.nan,
            mean_nats=float(mean),
            p99_nats=float(p99),
            max_nats=float(largest),
        )


def problems(name: str, baselines: Sequence[Noise], candidate: Noise) -> list[str]:
    """One sentence for each way in which the candidate differs by more than every baseline does.

    Args:
        baselines: plain TP against itself, and against tp 1.
        candidate: CP against plain TP, on the same prompts.
    """
    found = []
    for what, unit in (("mean", "mean_nats"), ("99th percentile", "p99_nats")):
        largest = max(getattr(noise, unit) for noise in baselines)
        allowed = max(SLACK * largest, FLOOR_NATS)
        value = getattr(candidate, unit)
        if not value <= allowed:
            found.append(f"{name}: input logprobs differ by {value:.4f} nats ({what}), plain TP's by {largest:.4f}.")
    least = min(noise.same_answers for noise in baselines)
    share = least / candidate.prompts
    # With all answers equal a share has no deviation of its own: one different answer is then let pass.
    deviation = max(math.sqrt(share * (1 - share) * candidate.prompts), 1 / DEVIATIONS)
    if candidate.same_answers < least - DEVIATIONS * deviation:
        found.append(
            f"{name}: {candidate.same_answers} of {candidate.prompts} answers have the same greedy tokens, "
            f"{least} of plain TP's."
        )
    return found


def _agreeing(first: Sequence[int], second: Sequence[int]) -> int:
    """Tokens before the first that differs."""
    pairs = zip(first, second, strict=True)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), len(first))
