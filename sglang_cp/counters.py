"""What a server did since it started, so that a reader (or a test) can tell that CP took part, and why or why not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from sglang_cp.decision import Decision
from sglang_cp.layout import TokenLayout


@dataclass
class Counters:
    """Counts of this rank; every rank counts the same extends.

    Attributes:
        cp_extends: forwards that were dealt out.
        cp_rows: their new tokens, all ranks together.
        cp_local_rows: those of them that this rank computed.
        cp_rows_over_topk: rows whose causal prefix is longer than index_topk, so that top-k dropped keys.
    """

    cp_extends: int = 0
    cp_rows: int = 0
    cp_local_rows: int = 0
    cp_rows_over_topk: int = 0

    def count(self, layout: TokenLayout, seq_lens: Sequence[int], extend_lens: Sequence[int], index_topk: int) -> None:
        """Count one CP extend. ``seq_lens``: prefix and new tokens of each request."""
        self.cp_extends += 1
        self.cp_rows += layout.num_rows
        self.cp_local_rows += layout.local_rows
        for seq_len, extend_len in zip(seq_lens, extend_lens, strict=True):
            # The last row of a request sees seq_len keys, the one before it one less, and so on.
            self.cp_rows_over_topk += min(extend_len, max(0, seq_len - index_topk))

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


@dataclass
class Tally:
    """Extends of one mode and reason, and their new tokens."""

    extends: int = 0
    rows: int = 0


@dataclass
class Decisions:
    """Extends by mode and reason, where CP is chosen for each."""

    _tallies: defaultdict[tuple[str, str], Tally] = field(default_factory=lambda: defaultdict(Tally))

    def count(self, decision: Decision, rows: int) -> None:
        """Count one extend of ``rows`` new tokens."""
        tally = self._tallies["cp" if decision.context_parallel else "tp", decision.reason]
        tally.extends += 1
        tally.rows += rows

    def as_dict(self) -> dict[str, dict[str, dict[str, int]]]:
        """mode -> reason -> extends and rows."""
        by_mode: dict[str, dict[str, dict[str, int]]] = {"cp": {}, "tp": {}}
        for (mode, reason), tally in self._tallies.items():
            by_mode[mode][reason] = asdict(tally)
        return by_mode


COUNTERS = Counters()
DECISIONS = Decisions()
"""This process's: a scheduler process serves one model."""
