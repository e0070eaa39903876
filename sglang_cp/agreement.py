"""A debug check that the ranks decide alike: they would otherwise wait for each other in different collectives."""

from __future__ import annotations

import hashlib
import os

import torch
import torch.distributed as dist

from sglang_cp.errors import SglangCpError
from sglang_cp.ranks import exchange

VARIABLE = "SGLANG_CP_CHECK_AGREEMENT"
"""Set it to 1 to compare every extend's decision among the ranks: one small all-reduce on the CPU each."""


class DisagreementError(SglangCpError):
    """The ranks decided differently; the message has every rank's decision."""


class AgreementCheck:
    """Compares what the ranks are about to do, on a group of its own."""

    def __init__(self, ranks: list[int]) -> None:
        """``ranks``: global ranks. Every rank of the default group must make this call."""
        self._group = dist.new_group(ranks, backend="gloo")

    def check(self, intention: str) -> None:
        """Raise DisagreementError on every rank unless all of them say the same."""
        digest = _digest(intention)
        extremes = torch.tensor([digest, -digest])
        dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=self._group)
        if extremes[0] != -extremes[1]:
            said = exchange(self._group, intention)
            raise DisagreementError(
                "The ranks decided differently about one extend and would wait for each other for ever: "
                + "; ".join(f"rank {rank}: {what}" for rank, what in enumerate(said))
            )


def requested() -> bool:
    """Whether the environment asks for the check."""
    return os.environ.get(VARIABLE, "").lower() in ("1", "true", "yes", "y")


def _digest(text: str) -> int:
    """A hash that an int64 holds, also negated."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
