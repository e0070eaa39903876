"""Measured extends to a cost model, by non-negative least squares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, product
from statistics import median

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from sglang_cp.cost.model import CostModel
from sglang_cp.cost.shape import ExtendShape
from sglang_cp.cost.terms import TERMS, Geometry, Mode, units
from sglang_cp.errors import UsageError

_PULL_BOUND = 1.05
"""A CP extend within 5 % of the bare pulls waits for them: its time says nothing about the terms they hide."""


@dataclass(frozen=True)
class Measurement:
    """One timed extend.

    Attributes:
        shape: its lengths.
        mode: how it ran.
        seconds: how long it took.
    """

    shape: ExtendShape
    mode: Mode
    seconds: float


@dataclass(frozen=True)
class Fit:
    """A fitted model beside what it was fitted to."""

    model: CostModel
    measurements: tuple[Measurement, ...]

    @property
    def residuals(self) -> list[float]:
        """Predicted over measured time, less 1, of each measurement."""
        return [self.model.seconds(m.shape, m.mode) / m.seconds - 1 for m in self.measurements]

    @property
    def worst(self) -> float:
        """The residual that is farthest from 0, without its sign."""
        return max(abs(residual) for residual in self.residuals)

    @property
    def rms(self) -> float:
        """Root mean square of the residuals."""
        return math.sqrt(sum(residual**2 for residual in self.residuals) / len(self.measurements))


def fit(
    measurements: Sequence[Measurement],
    geometry: Geometry,
    *,
    terms: Sequence[str] = tuple(TERMS),
    pull_seconds: float = 0.0,
) -> Fit:
    """Fit seconds a unit of each term, and the host's launch time, minimising relative errors.

    Short extends may all take the host's time, whatever their rows; how many do is found by trying: the shortest two,
    three and so on in each mode are taken as bound by the host, the terms are fitted to the others, and the split that
    leaves the least squared error stays.

    Args:
        measurements: extends timed in both modes; repeated ones count as often as they stand there.
        geometry: of the server that ran them.
        terms: keys of ``TERMS`` to fit; the others are left out of the model.
        pull_seconds: as in ``CostModel``, measured on its own. CP extends that it bounds are not fitted.

    Raises:
        UsageError: for a time that is not a positive number, a mode without measurements, or fewer different
            (shape, mode) points than terms.
    """
    groups = _usable(measurements, pull_seconds)
    points = sum(map(len, groups.values()))
    if points < len(terms):
        raise UsageError(
            f"{points} measured points are too few to fit {len(terms)} terms: measure more lengths and prefixes."
        )
    used = list(chain(*groups[Mode.TP], *groups[Mode.CP]))
    rows = {m: np.array([units(term, m.shape, geometry, m.mode) for term in terms]) for m in used}
    best, least = None, math.inf
    for bound_tp, bound_cp in product(*(_host_bound_counts(len(groups[mode])) for mode in (Mode.TP, Mode.CP))):
        if points - bound_tp - bound_cp < len(terms):
            continue
        bound = {Mode.TP: groups[Mode.TP][:bound_tp], Mode.CP: groups[Mode.CP][:bound_cp]}
        free = list(chain(*groups[Mode.TP][bound_tp:], *groups[Mode.CP][bound_cp:]))
        solved = nonnegative_fit(np.array([rows[m] for m in free]), np.array([m.seconds for m in free]))
        host = {mode: _level(list(chain(*grouped))) for mode, grouped in bound.items() if grouped}
        error = sum((max(float(rows[m] @ np.array(solved)), host.get(m.mode, 0.0)) / m.seconds - 1) ** 2 for m in used)
        if error < least:
            best, least = CostModel(geometry, dict(zip(terms, solved, strict=True)), pull_seconds, host), error
    assert best is not None  # nothing bound by the host is the first split
    return Fit(best, tuple(measurements))


def _usable(measurements: Sequence[Measurement], pull_seconds: float) -> dict[Mode, list[list[Measurement]]]:
    """What can teach the terms, by mode and shape; each mode has some. Raises UsageError as ``fit`` does."""
    for m in measurements:
        if not (math.isfinite(m.seconds) and m.seconds > 0):
            raise UsageError(
                f"A measured extend of {m.shape.rows:,} rows ({m.mode}) took {m.seconds} s, which is no time: "
                "measure again."
            )
    used = [m for m in measurements if m.mode is Mode.TP or m.seconds > pull_seconds * _PULL_BOUND]
    groups = {mode: _by_shape([m for m in used if m.mode is mode]) for mode in Mode}
    for mode, grouped in groups.items():
        if not grouped:
            raise UsageError(f"No usable {mode} extend was measured: measure a few, of different lengths.")
    return groups


def _by_shape(measurements: Sequence[Measurement]) -> list[list[Measurement]]:
    """Repeated measurements together, the shortest shapes first."""
    groups: dict[ExtendShape, list[Measurement]] = {}
    for m in measurements:
        groups.setdefault(m.shape, []).append(m)
    return sorted(groups.values(), key=lambda group: median(m.seconds for m in group))


def _host_bound_counts(shapes: int) -> list[int]:
    """How many of the shortest shapes may be bound by the host: none, or two (one proves nothing) or more."""
    return [0, *range(2, shapes)]


def _level(measurements: Sequence[Measurement]) -> float:
    """The one time with the least squared relative errors to all."""
    inverse = [1 / m.seconds for m in measurements]
    return sum(inverse) / sum(value**2 for value in inverse)


def nonnegative_fit(
    design: npt.NDArray[np.float64],
    seconds: npt.NDArray[np.float64],
    known: npt.NDArray[np.float64] | None = None,
) -> list[float]:
    """Coefficients >= 0 that minimise the sum of squared relative errors of ``known + design @ coefficients``.

    Args:
        design: [points, terms], units of each term.
        seconds: [points], all positive: what was measured.
        known: [points], the part of it that needs no coefficient; nothing by default.
    """
    relative = design / seconds[:, None]
    target = np.ones(len(seconds)) if known is None else 1 - known / seconds
    # Columns of like size: launches are 1, pairs are 1e9, and the solver's tolerance is absolute.
    scale = np.where(relative.any(axis=0), np.abs(relative).max(axis=0), 1.0)
    solution, _ = nnls(relative / scale, target)
    return [float(value) for value in solution / scale]
