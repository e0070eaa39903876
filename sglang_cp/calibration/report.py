"""What a calibration says to an operator."""

from __future__ import annotations

from rich.table import Table

from sglang_cp.cost.calibration import Calibration
from sglang_cp.cost.choice import choose
from sglang_cp.cost.model import CostModel
from sglang_cp.cost.terms import Mode
from sglang_cp.cost.winning import holds_from

LONGEST_TOKENS = 131_072
"""Prompts up to here are looked at."""


def cp_from_tokens(model: CostModel) -> int | None:
    """New tokens from which an extend without cached prefix is dealt out, as are all longer ones; None if none is."""
    return holds_from(lambda tokens: choose(model, [tokens], [0]).mode is Mode.CP, LONGEST_TOKENS)


def break_even_text(model: CostModel) -> str:
    """The same, in words."""
    tokens = cp_from_tokens(model)
    if tokens is None:
        return f"no extend without cached prefix up to {LONGEST_TOKENS:,} new tokens is dealt out"
    return f"extends without cached prefix are dealt to {model.geometry.tp} ranks from {tokens:,} new tokens on"


def residuals_text(calibration: Calibration) -> str:
    """How many extends were measured, where, and how well the model meets them."""
    fitted = calibration.to_fit()
    return (
        f"{len(fitted.measurements)} extends measured on {calibration.key.device}, met by the cost model within "
        f"{fitted.rms:.1%} (root mean square), {fitted.worst:.1%} at most"
    )


def table(calibration: Calibration) -> Table:
    """Every measured extend beside its prediction."""
    fitted = calibration.to_fit()
    made = Table(title=f"Extends on {calibration.key.device}, tp {calibration.key.tp}", title_justify="left")
    for column in ("new tokens", "cached", "mode", "measured, ms", "predicted, ms", "off by"):
        made.add_column(column, justify="right")
    for measured, residual in zip(fitted.measurements, fitted.residuals, strict=True):
        shape = measured.shape
        made.add_row(
            f"{shape.rows:,}",
            f"{sum(shape.prefix_lens):,}",
            measured.mode.value,
            f"{measured.seconds * 1e3:.2f}",
            f"{measured.seconds * (1 + residual) * 1e3:.2f}",
            f"{residual:+.1%}",
        )
    return made
