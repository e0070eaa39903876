"""From which length on something holds."""

from __future__ import annotations

import math
from collections.abc import Callable

_STEPS = 200
"""Lengths tried, evenly spaced on a logarithmic scale: 7 % apart over a million tokens."""


def holds_from(holds: Callable[[int], bool], longest: int) -> int | None:
    """The shortest length for which ``holds``, as it does for all longer ones that were tried, up to ``longest``.

    None if it does not hold for ``longest``, or if that is under 1.
    """
    if longest < 1:
        return None
    lengths = sorted({round(math.exp(math.log(longest) * step / _STEPS)) for step in range(_STEPS + 1)}, reverse=True)
    holding = None
    for length in lengths:
        if not holds(length):
            break
        holding = length
    else:
        return 1
    if holding is None:
        return None
    failing = length
    while holding - failing > 1:
        middle = (holding + failing) // 2
        failing, holding = (failing, middle) if holds(middle) else (middle, holding)
    return holding
