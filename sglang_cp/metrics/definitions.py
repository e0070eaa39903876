"""The metrics by name, with what they mean: the dashboard in launch/grafana has a panel for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang_cp.compat import StrEnum


class Name(StrEnum):
    """As scraped; a histogram's series end with ``_bucket``, ``_sum`` and ``_count`` besides."""

    EXTENDS = "sglang_cp:extends_total"
    NEW_TOKENS = "sglang_cp:extend_tokens_total"
    RANK_ROWS = "sglang_cp:extend_rank_rows"
    PULLED_BYTES = "sglang_cp:pulled_bytes_total"
    PULL_EXPOSED = "sglang_cp:pull_exposed_seconds"
    DECISION = "sglang_cp:decision_seconds"
    EXTEND = "sglang_cp:extend_seconds"
    PREDICTED = "sglang_cp:extend_predicted_seconds"
    RATIO = "sglang_cp:extend_actual_to_predicted_ratio"


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        documentation: its HELP line.
        labels: besides SGLang's own (model_name, engine_type and the ranks).
        buckets: upper bounds of a histogram; none for a counter.
    """

    documentation: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _powers(first: float, factor: float, count: int) -> tuple[float, ...]:
    return tuple(first * factor**index for index in range(count))


_EXTEND_SECONDS = _powers(1e-3, 2, 17)  # 1 ms to 65 s

METRICS = {
    Name.EXTENDS: Metric("Extend batches by mode (cp: dealt out to the ranks, or tp) and reason.", ("mode", "reason")),
    Name.NEW_TOKENS: Metric("New tokens of extend batches by mode and reason.", ("mode", "reason")),
    Name.RANK_ROWS: Metric(
        "Rows that this rank computed of an extend batch: its share with cp, all with tp.",
        ("mode",),
        _powers(1, 2, 18),  # 1 to 131,072
    ),
    Name.PULLED_BYTES: Metric("Bytes of attention weights that came from other ranks' memory."),
    Name.PULL_EXPOSED: Metric(
        "Time that a cp extend spent on weight shards only, not hidden by computing, all layers together.",
        buckets=_powers(1e-5, 4, 10),  # 10 us to 2.6 s
    ),
    Name.DECISION: Metric(
        "Host time to decide how an extend batch runs.",
        buckets=_powers(1e-6, 2, 14),  # 1 us to 8 ms
    ),
    Name.EXTEND: Metric("Time of an extend batch from its decision to its last operation.", ("mode",), _EXTEND_SECONDS),
    Name.PREDICTED: Metric(
        "What the server's calibration predicts for the same extend batches; none without a calibration.",
        ("mode",),
        _EXTEND_SECONDS,
    ),
    Name.RATIO: Metric(
        "Time of an extend batch over its prediction.",
        ("mode",),
        (0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0),
    ),
}


class Series:
    """The registered metrics of one scheduler process."""

    def __init__(self, collector: Any) -> None:
        """``collector``: SGLang's SchedulerMetricsCollector, which has its own registered and knows the labels."""
        # Not at the top: SGLang sets PROMETHEUS_MULTIPROC_DIR before its first import.
        import prometheus_client

        counter = collector._counter_cls or prometheus_client.Counter
        histogram = collector._histogram_cls or prometheus_client.Histogram
        ours = {label for metric in METRICS.values() for label in metric.labels} | {"priority"}  # a request's
        self._labels = {name: str(value) for name, value in collector.labels.items() if name not in ours}
        self._metrics: dict[Name, Any] = {}
        for name, metric in METRICS.items():
            names = (*self._labels, *metric.labels)
            self._metrics[name] = (
                histogram(name.value, metric.documentation, names, buckets=metric.buckets)
                if metric.buckets
                else counter(name.value, metric.documentation, names)
            )

    def add(self, name: Name, amount: float, **labels: str) -> None:
        """To a counter."""
        self._metrics[name].labels(**self._labels, **labels).inc(amount)

    def observe(self, name: Name, value: float, **labels: str) -> None:
        """Into a histogram."""
        self._metrics[name].labels(**self._labels, **labels).observe(value)
