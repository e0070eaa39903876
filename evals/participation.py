"""Did CP take part? Equal scores mean nothing where no prompt was dealt out, or where top-k dropped no key. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Counters = Mapping[str, int]
"""CP counters since a server's start, as sglang_cp.counters has them."""


@dataclass(frozen=True)
class Participation:
    """What CP did while one arm answered.

    Attributes:
        prompts: how many were asked.
        prompts_over_topk: those with more tokens than index_topk, whose last rows cannot attend to every key.
        counters: the change of the CP counters, None for a server without sglang-cp.
    """

    prompts: int
    prompts_over_topk: int
    counters: dict[str, int] | None

    @classmethod
    def count(
        cls, prompt_tokens: Sequence[int], index_topk: int, before: Counters | None, after: Counters | None
    ) -> Participation:
        """From the prompts' lengths in tokens, and the counters before and after."""
        change = None if before is None or after is None else {name: after[name] - before[name] for name in after}
        return cls(len(prompt_tokens), sum(tokens > index_topk for tokens in prompt_tokens), change)

    @property
    def share_over_topk(self) -> float:
        return self.prompts_over_topk / self.prompts

    def counter(self, name: str) -> int:
        """The change of one counter; 0 without sglang-cp."""
        return (self.counters or {}).get(name, 0)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "share_over_topk": self.share_over_topk}


def problems(runs: Mapping[str, Participation]) -> list[str]:
    """Why the runs of a CP arm, by name, do not speak for CP: each one sentence.

    Every run must have had extends dealt out. Prompts of one run may all be short of index_topk (10-shot GSM8K is),
    but not those of all.
    """
    found = [
        f"{name}: no extend was dealt out: CP did not take part. Use longer prompts or a lower --cp-min-tokens."
        for name, run in runs.items()
        if run.counter("cp_extends") <= 0
    ]
    if all(run.counter("cp_rows_over_topk") <= 0 for run in runs.values()):
        found.append("CP: top-k dropped no key of any extend that was dealt out: use prompts longer than index_topk.")
    return found


def stray(runs: Mapping[str, Participation]) -> list[str]:
    """The runs of a baseline, by name, in which CP took part all the same: each one sentence."""
    return [
        f"{name}: the baseline has CP off, yet extends were dealt out."
        for name, run in runs.items()
        if run.counter("cp_extends") > 0
    ]
