"""A calibration to test with."""

from __future__ import annotations

from typing import Any

from sglang_cp.cost.calibration import Calibration, CalibrationKey, MeasuredExtend
from sglang_cp.cost.terms import TERMS


def key(**changes: Any) -> CalibrationKey:
    made = {
        "device": "a test's",
        "model": {"index_topk": 32},
        "dtype": "float32",
        "kv_cache_dtype": "float32",
        "tp": 2,
        "shard_source": "process group",
        "versions": {"sglang": "1"},
    }
    return CalibrationKey(**{**made, **changes})


def cp_from_100_tokens(made_for: CalibrationKey) -> Calibration:
    """CP costs 50 us at once and 0.5 us a row (on each of 2 ranks), TP 1 us a row: even at 100 tokens."""
    return Calibration(
        key=made_for,
        index_topk=32,
        pull_seconds=0.0,
        host_seconds={},
        coefficients={**dict.fromkeys(TERMS, 0.0), "launch_cp": 50e-6, "repeated_rows": 1e-6},
        measurements=[
            MeasuredExtend(extend_lens=[200], prefix_lens=[0], mode="tp", seconds=200e-6),
            MeasuredExtend(extend_lens=[200], prefix_lens=[0], mode="cp", seconds=120e-6),
        ],
    )
