"""Seconds of an extend in each mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sglang_cp.cost.shape import ExtendShape
from sglang_cp.cost.terms import TERMS, Geometry, Mode, Units

EXPOSED_HOST = "exposed_host"
"""The part of an extend's time in which the device waits for the host to launch kernels."""
EXPOSED_PULLS = "exposed_pulls"
"""The part of a CP extend's time in which it waits for weight shards, beyond any wait for the host."""


@dataclass(frozen=True)
class CostModel:
    """A sum of terms, and two things that run beside them and are hidden up to it.

    The host launches kernels ahead of the device: a short extend takes as long as that. A layer's shards are pulled
    while the layer before computes, and layers are alike: a CP extend takes at least as long as all its pulls.

    Attributes:
        geometry: what the model was fitted for.
        coefficients: seconds a unit, by term (a subset of ``terms.TERMS``); none is negative.
        pull_seconds: time to pull the missing shards of all layers with nothing else running; 0 where CP's weights
            are replicated.
        host_seconds: host time to launch an extend, by mode; 0 where it was never seen to matter.
    """

    geometry: Geometry
    coefficients: Mapping[str, float]
    pull_seconds: float = 0.0
    host_seconds: Mapping[Mode, float] = field(default_factory=dict)

    def breakdown(self, shape: ExtendShape, mode: Mode) -> dict[str, float]:
        """Seconds by term, then what is exposed of host and pulls; all 0 for an extend without rows."""
        return self._breakdown(shape, mode, self._units(shape))

    def seconds(self, shape: ExtendShape, mode: Mode) -> float:
        """Seconds that the extend takes in ``mode``.

        Plain Python arithmetic in a fixed order: ranks that hold the same coefficients get the same float.
        """
        return sum(self.breakdown(shape, mode).values())

    def seconds_by_mode(self, shape: ExtendShape) -> dict[Mode, float]:
        """``seconds`` in each mode, for little more than one of them."""
        work = self._units(shape)
        return {mode: sum(self._breakdown(shape, mode, work).values()) for mode in Mode}

    def _units(self, shape: ExtendShape) -> dict[str, Units]:
        return {term: TERMS[term](shape, self.geometry) for term in self.coefficients}

    def _breakdown(self, shape: ExtendShape, mode: Mode, work: Mapping[str, Units]) -> dict[str, float]:
        parts = {term: seconds * work[term].of(mode) for term, seconds in self.coefficients.items()}
        device = sum(parts.values())
        host = self.host_seconds.get(mode, 0.0) if shape.rows else 0.0
        pulls = self.pull_seconds if shape.rows and mode is Mode.CP else 0.0
        parts[EXPOSED_HOST] = max(0.0, host - device)
        parts[EXPOSED_PULLS] = max(0.0, pulls - max(device, host))
        return parts
