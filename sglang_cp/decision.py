"""Whether one extend batch is dealt out (CP) or runs as plain TP: a pure function of what every rank knows.

All ranks of a tensor-parallel group must come to the same answer without talking, or they would wait for each other
in different collectives. So the decision reads only the scheduler's numbers for the batch (equal on all ranks) and
settings fixed at start-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Decision:
    """The mode of one extend batch, and why."""

    context_parallel: bool
    reason: str


@dataclass(frozen=True)
class Policy:
    """Settings of the decision.

    Attributes:
        size: ranks that the rows of a CP extend are dealt to.
        min_tokens: new tokens from which an extend is dealt out (``--cp-min-tokens``).
    """

    size: int
    min_tokens: int

    def decide(self, extend_lens: Sequence[int]) -> Decision:
        """Decide for an extend that adds ``extend_lens[i]`` tokens to request i."""
        new_tokens = sum(extend_lens)
        if new_tokens < self.size:
            return Decision(False, f"{new_tokens} < {self.size} ranks")
        if new_tokens < self.min_tokens:
            return Decision(False, f"{new_tokens:,} < {self.min_tokens:,}")
        return Decision(True, f"{new_tokens:,} >= {self.min_tokens:,}")
