"""The terms of an extend's time: units of work on the busiest rank, by mode. A model multiplies them by seconds a unit.

Timing whole extends in two modes tells apart only what the modes, or lengths, scale differently. So a term here is a
way of scaling, and holds everything that scales so:

| term | TP | CP |
|---|---|---|
| launch_tp, launch_cp | once | once |
| rows | rows | rows, padded |
| repeated_rows | rows | rows of a rank |
| index_rows | rows | rows of a rank |
| scoring | row x prefix pairs | 1/tp of them |
| attention | row x key pairs / tp | row x key pairs / tp |
| repeated_attention | row x key pairs | 1/tp of them |

- launch: what every extend pays, such as collectives' latency and reading the experts' weights.
- rows: MoE and dense FFN, which CP does not divide, and head-sharded projections: 1/tp of the heads on all rows, or all
  heads on 1/tp of the rows.
- repeated_rows: latent projections, norms, RoPE: TP repeats them on every rank.
- index_rows: the indexer's query projection, quantization and top-k, repeated by TP.
- scoring: index scoring, repeated by TP; the only term that grows faster than the rows.
- attention: sparse attention, divided by heads or by rows; a row attends to at most index_topk keys.
- repeated_attention: reading the selected latents, and heads padded to a kernel's block.

*The fast path*: while no request is longer than index_topk, SGLang's plain TP neither scores nor selects (upstream's
``Indexer._should_skip_logits_computation``); a CP extend does.

*Row collectives* are in rows and repeated_rows. An all-reduce moves as much as an all-gather and a reduce-scatter
together; TP does two a layer, CP half of that on hidden states (its latents add 6 % at GLM-5.2's widths). With k
seconds a row for one all-gather, 4 k a row in TP and 2 k in CP are exactly 2 k (tp - 2) / (tp - 1) of ``rows`` and
2 k tp / (tp - 1) of ``repeated_rows``: a term of their own would leave the fit without a unique answer. For the same
reason MoE and head-sharded projections share a term.

*Shard pulls* and the host's *launches* are hidden up to the sum of these terms; see ``model``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from sglang_cp.compat import StrEnum
from sglang_cp.cost.shape import ExtendShape


class Mode(StrEnum):
    """How an extend runs."""

    TP = "tp"
    CP = "cp"


@dataclass(frozen=True)
class Geometry:
    """What the terms need of model and launch.

    Attributes:
        tp: ranks, 2 or more.
        index_topk: keys that a row attends to.
    """

    tp: int
    index_topk: int


class Units(NamedTuple):
    """Work of one term in each mode."""

    tp: float
    cp: float

    def of(self, mode: Mode) -> float:
        """In ``mode``."""
        return self.tp if mode is Mode.TP else self.cp


def _padded(shape: ExtendShape, geometry: Geometry) -> int:
    """Rows of each rank of a CP extend, padding included."""
    return -(-shape.rows // geometry.tp)


def _takes_fast_path(shape: ExtendShape, geometry: Geometry) -> bool:
    return shape.longest <= geometry.index_topk


def _launch_tp(shape: ExtendShape, _: Geometry) -> Units:
    return Units(float(shape.rows > 0), 0)


def _launch_cp(shape: ExtendShape, _: Geometry) -> Units:
    return Units(0, float(shape.rows > 0))


def _rows(shape: ExtendShape, geometry: Geometry) -> Units:
    return Units(shape.rows, _padded(shape, geometry) * geometry.tp)


def _repeated_rows(shape: ExtendShape, geometry: Geometry) -> Units:
    return Units(shape.rows, _padded(shape, geometry))


def _index_rows(shape: ExtendShape, geometry: Geometry) -> Units:
    return Units(0 if _takes_fast_path(shape, geometry) else shape.rows, _padded(shape, geometry))


def _scoring(shape: ExtendShape, geometry: Geometry) -> Units:
    pairs = shape.causal_pairs
    return Units(0 if _takes_fast_path(shape, geometry) else pairs, pairs / geometry.tp)


def _attention(shape: ExtendShape, geometry: Geometry) -> Units:
    share = shape.attended_pairs(geometry.index_topk) / geometry.tp
    return Units(share, share)


def _repeated_attention(shape: ExtendShape, geometry: Geometry) -> Units:
    pairs = shape.attended_pairs(geometry.index_topk)
    return Units(pairs, pairs / geometry.tp)


TERMS: Mapping[str, Callable[[ExtendShape, Geometry], Units]] = MappingProxyType(
    {
        "launch_tp": _launch_tp,
        "launch_cp": _launch_cp,
        "rows": _rows,
        "repeated_rows": _repeated_rows,
        "index_rows": _index_rows,
        "scoring": _scoring,
        "attention": _attention,
        "repeated_attention": _repeated_attention,
    }
)


def units(term: str, shape: ExtendShape, geometry: Geometry, mode: Mode) -> float:
    """Units of ``term`` (a key of TERMS) on the busiest rank when the extend runs in ``mode``."""
    return TERMS[term](shape, geometry).of(mode)
