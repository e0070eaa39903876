"""What is put on an extend's record: bytes of other ranks, and time that no computing hides."""

import pytest

from sglang_cp.metrics.pulls import MeasuredSource, PullRecord
from sglang_cp.weights.shards import layer_shards
from tests.weights.test_pipeline import SIZE, LateSource, _LateCopy, expect, layers, pipeline, source

__all__ = ["layers", "pipeline", "source"]  # fixtures

ISSUE_SECONDS, WAIT_SECONDS, COMPUTE_SECONDS = 1.0, 10.0, 100.0


class Clock:
    """Time that only passes where the test says so."""

    now = 0.0

    def mark(self, stream=None):
        return self.now

    def done(self, mark):
        return True

    def seconds(self, start, end):
        return end - start


@pytest.fixture
def clock(monkeypatch):
    made = Clock()

    def passes(method, seconds):
        def slow(*arguments):
            made.now += seconds
            return method(*arguments)

        return slow

    monkeypatch.setattr(LateSource, "pull", passes(LateSource.pull, ISSUE_SECONDS))
    monkeypatch.setattr(_LateCopy, "wait", passes(_LateCopy.wait, WAIT_SECONDS))
    return made


def extend(pipeline, layers, clock):
    pipeline.begin()
    for index, ranks in enumerate(layers):
        expect(pipeline.take(index), ranks)
        clock.now += COMPUTE_SECONDS


def test_an_extends_pulls_are_recorded_and_still_right(layers, pipeline, clock):
    record = PullRecord(clock)
    pipeline.measure_pulls(lambda source: MeasuredSource(source, lambda: record))
    extend(pipeline, layers, clock)
    own = sum(shard.num_bytes for ranks in layers for shard in layer_shards(ranks[0]))
    assert record.num_bytes == (SIZE - 1) * own
    assert record.exposed_seconds() == len(layers) * (ISSUE_SECONDS + WAIT_SECONDS)


def test_without_a_record_nothing_is_measured(layers, source, pipeline, clock):
    pipeline.measure_pulls(lambda inner: MeasuredSource(inner, lambda: None))
    extend(pipeline, layers, clock)
    assert source.started == list(range(len(layers)))
    assert MeasuredSource(source, lambda: None).name == source.name


def test_a_refresh_reaches_the_source(source):
    MeasuredSource(source, lambda: None).refresh()
    assert source.refreshed == []
