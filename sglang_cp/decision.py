"""Whether one extend batch is dealt out (CP) or runs as plain TP: a pure function of what every rank knows.

All ranks of a tensor-parallel group must come to the same answer without talking, or they would wait for each other
in different collectives. So a decision reads only the scheduler's numbers for the batch (equal on all ranks) and
settings or coefficients that are equal on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sglang_cp.cost.choice import choose
from sglang_cp.cost.model import CostModel
from sglang_cp.cost.terms import Mode

AUTO = "auto"
"""The value of ``--cp-min-tokens`` that asks for the cost model."""
DEFAULT_MIN_TOKENS = 2048
"""The threshold where none is given, or where ``auto`` cannot measure."""


@dataclass(frozen=True)
class Decision:
    """The mode of one extend batch, and why.

    Attributes:
        context_parallel: whether its rows are dealt out.
        reason: one of few, so that it can label a counter.
        numbers: what was compared, where something was.
    """

    context_parallel: bool
    reason: str
    numbers: str = ""

    def __str__(self) -> str:
        return self.numbers or self.reason


class Policy(Protocol):
    """Decides each extend."""

    def decide(self, extend_lens: Sequence[int], prefix_lens: Sequence[int]) -> Decision:
        """Decide for an extend that adds ``extend_lens[i]`` tokens to ``prefix_lens[i]`` cached ones of request i."""
        ...


@dataclass(frozen=True)
class Threshold:
    """CP from a number of new tokens on.

    Attributes:
        size: ranks that the rows of a CP extend are dealt to.
        min_tokens: new tokens from which an extend is dealt out (``--cp-min-tokens``).
    """

    size: int
    min_tokens: int

    def decide(self, extend_lens: Sequence[int], prefix_lens: Sequence[int]) -> Decision:
        new_tokens = sum(extend_lens)
        if new_tokens < self.size:
            return Decision(False, "fewer rows than ranks", f"{new_tokens} < {self.size} ranks")
        if new_tokens < self.min_tokens:
            return Decision(False, "under the threshold", f"{new_tokens:,} < {self.min_tokens:,}")
        return Decision(True, "threshold reached", f"{new_tokens:,} >= {self.min_tokens:,}")


@dataclass(frozen=True)
class Predicted:
    """The mode that a cost model predicts to take less time.

    Attributes:
        model: the same on every rank, to the bit.
    """

    model: CostModel

    def decide(self, extend_lens: Sequence[int], prefix_lens: Sequence[int]) -> Decision:
        choice = choose(self.model, extend_lens, prefix_lens)
        return Decision(choice.mode is Mode.CP, choice.reason.value, str(choice))


def mode_text(decision: Decision, rows: int, size: int) -> str:
    """How an extend of ``rows`` new tokens ran, for the log: ``cp: 4 x 8192 rows (why)`` or ``tp (why)``."""
    return f"cp: {size} x {-(-rows // size)} rows ({decision})" if decision.context_parallel else f"tp ({decision})"
