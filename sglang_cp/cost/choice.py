"""CP or TP for one extend, by predicted time: a pure function that every rank answers alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sglang_cp.compat import StrEnum
from sglang_cp.cost.model import CostModel
from sglang_cp.cost.shape import ExtendShape
from sglang_cp.cost.terms import Mode


class Reason(StrEnum):
    """Why a mode was chosen; few values, so that they can label a counter."""

    FEWER_ROWS_THAN_RANKS = "fewer rows than ranks"
    CP_FASTER = "cp predicted faster"
    TP_NOT_SLOWER = "tp predicted not slower"


@dataclass(frozen=True)
class Choice:
    """The mode of one extend, and the predictions behind it, in seconds."""

    mode: Mode
    reason: Reason
    tp_seconds: float
    cp_seconds: float

    def __str__(self) -> str:
        """For a log line, such as ``cp 12.3 ms < tp 20.1 ms``."""
        if self.reason is Reason.FEWER_ROWS_THAN_RANKS:
            return self.reason.value
        cp, tp = f"cp {self.cp_seconds * 1e3:.1f} ms", f"tp {self.tp_seconds * 1e3:.1f} ms"
        return f"{cp} < {tp}" if self.mode is Mode.CP else f"{tp} <= {cp}"


def choose(model: CostModel, extend_lens: Sequence[int], prefix_lens: Sequence[int]) -> Choice:
    """The mode that is predicted to take less time; a tie goes to TP.

    Args:
        model: the same on every rank, to the bit.
        extend_lens: new tokens of each request.
        prefix_lens: cached tokens of each request.
    """
    shape = ExtendShape.of(extend_lens, prefix_lens)
    seconds = model.seconds_by_mode(shape)
    tp_seconds, cp_seconds = seconds[Mode.TP], seconds[Mode.CP]
    if shape.rows < model.geometry.tp:
        return Choice(Mode.TP, Reason.FEWER_ROWS_THAN_RANKS, tp_seconds, cp_seconds)
    if cp_seconds < tp_seconds:
        return Choice(Mode.CP, Reason.CP_FASTER, tp_seconds, cp_seconds)
    return Choice(Mode.TP, Reason.TP_NOT_SLOWER, tp_seconds, cp_seconds)
