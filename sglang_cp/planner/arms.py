"""The ways to serve that are compared."""

from __future__ import annotations

from sglang_cp.compat import StrEnum
from sglang_cp.cost.terms import Mode
from sglang_cp.decision import DEFAULT_MIN_TOKENS


class Arm(StrEnum):
    """A server's setting of CP."""

    OFF = "off"
    """Plain TP."""
    REPLICATED = "replicated"
    """SGLang's own CP: every extend, with the weights of all heads on every rank, in decode too."""
    SHARDED = "sharded"
    """This package's CP with its default threshold: extends of at least ``DEFAULT_MIN_TOKENS`` new tokens."""
    AUTO = "auto"
    """The same, but each extend takes the mode that the cost model predicts to be faster."""


def fixed_mode(arm: Arm, rows: int) -> Mode:
    """How an arm that does not predict (all but AUTO) runs an extend of ``rows`` new tokens."""
    dealt_out = arm is Arm.REPLICATED or (arm is Arm.SHARDED and rows >= DEFAULT_MIN_TOKENS)
    return Mode.CP if dealt_out else Mode.TP
