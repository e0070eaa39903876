"""The metrics as Prometheus scrapes them, with SGLang's labels and our own."""

from functools import partial
from types import SimpleNamespace

import prometheus_client
import pytest

from sglang_cp.metrics.definitions import METRICS, Name, Series


@pytest.fixture
def registry():
    return prometheus_client.CollectorRegistry()


def series(registry, **labels):
    """As with a collector of SGLang that has other metric classes: here, with a registry of their own."""
    collector = SimpleNamespace(
        labels={"model_name": "m", "tp_rank": 3, **labels},
        _counter_cls=partial(prometheus_client.Counter, registry=registry),
        _histogram_cls=partial(prometheus_client.Histogram, registry=registry),
    )
    return Series(collector)


def test_values_carry_sglangs_labels_and_ours(registry):
    made = series(registry)
    made.add(Name.EXTENDS, 1, mode="cp", reason="threshold reached")
    made.add(Name.EXTENDS, 2, mode="cp", reason="threshold reached")
    made.observe(Name.RANK_ROWS, 8, mode="tp")
    labels = {"model_name": "m", "tp_rank": "3"}
    assert registry.get_sample_value(Name.EXTENDS, {**labels, "mode": "cp", "reason": "threshold reached"}) == 3
    assert registry.get_sample_value(Name.RANK_ROWS + "_sum", {**labels, "mode": "tp"}) == 8


def test_every_metric_can_be_written(registry):
    made = series(registry)
    for name, metric in METRICS.items():
        write = made.observe if metric.buckets else made.add
        write(name, 1, **dict.fromkeys(metric.labels, "x"))
    scraped = {family.name for family in registry.collect()}
    assert scraped == {name.removesuffix("_total") for name in Name}


def test_names_say_what_they_count_and_in_what():
    assert set(METRICS) == set(Name)
    for name, metric in METRICS.items():
        assert name.startswith("sglang_cp:")
        assert name.endswith("_total") == (not metric.buckets)
        assert list(metric.buckets) == sorted(set(metric.buckets))


@pytest.mark.parametrize("label", ["mode", "reason", "priority"])
def test_a_label_of_the_operators_that_is_named_like_ours_does_no_harm(registry, label):
    made = series(registry, **{label: "theirs", "cluster": "a"})
    made.add(Name.EXTENDS, 1, mode="cp", reason="r")
    labels = {"model_name": "m", "tp_rank": "3", "cluster": "a", "mode": "cp", "reason": "r"}
    assert registry.get_sample_value(Name.EXTENDS, labels) == 1
