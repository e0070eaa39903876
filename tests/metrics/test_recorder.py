"""An extend batch from its decision to its end: what is published of it, and when."""

from types import SimpleNamespace

import pytest

from sglang_cp.cost.shape import ExtendShape
from sglang_cp.cost.terms import Mode
from sglang_cp.decision import Decision
from sglang_cp.metrics.definitions import Name
from sglang_cp.metrics.recorder import Recorder
from sglang_cp.weights.buffers import WeightBuffers, gathered_bytes
from sglang_cp.weights.shards import layer_shards
from tests.calibration.examples import cp_from_100_tokens, key
from tests.weights.test_pipeline import LateSource, layers

__all__ = ["layers"]  # a fixture

CP, TP = Decision(True, "threshold reached", "9 >= 8"), Decision(False, "under the threshold", "5 < 8")


class Clock:
    """A device: what is issued is done when the test says so."""

    def __init__(self):
        self.now, self.done_until, self.streams = 0.0, 0.0, []

    def mark(self, stream=None):
        self.streams.append(stream)
        return self.now

    def done(self, mark):
        return mark <= self.done_until

    def seconds(self, start, end):
        assert end <= self.done_until, "an event was read before it was done"
        return end - start


class Series:
    def __init__(self):
        self.written = []

    def add(self, name, amount, **labels):
        self.written.append((name, amount, *labels.values()))

    observe = add

    def of(self, *names):
        return [entry for entry in self.written if entry[0] in names]


class Strategy:
    cp_size, cp_rank, calibration, is_forced = 4, 1, None, False

    def __init__(self, layers):
        self.source, self.decision, self.asked = LateSource(layers), CP, 0
        self.placement = self

    def measure_pulls(self, measured):
        self.source = measured(self.source)

    def decide(self, num_tokens, forward_batch):
        self.asked += 1
        return self.decision


def batch(extend=True, new=(9,), prefix=(4,)):
    totals = [a + b for a, b in zip(new, prefix, strict=True)]
    mode = SimpleNamespace(is_context_parallel_extend=lambda: extend)
    return SimpleNamespace(forward_mode=mode, extend_seq_lens_cpu=list(new), seq_lens_cpu=totals)


@pytest.fixture
def world(layers):
    strategy, clock, series = Strategy(layers), Clock(), Series()
    return SimpleNamespace(
        strategy=strategy, clock=clock, series=series, recorder=Recorder(strategy, clock, series), layers=layers
    )


def run(world, decision, seconds, rows=9, **of_batch):
    world.strategy.decision = decision
    asked = batch(**of_batch)
    assert world.strategy.decide(rows, asked) is decision
    world.clock.now += seconds
    assert world.strategy.decide(rows, asked) is decision  # SGLang asks again in the same forward
    world.recorder.extend_issued(decision, rows, "forward stream")


def test_counts_are_published_at_once_and_times_when_the_device_is_done(world):
    run(world, CP, 2.0)
    world.recorder.publish()
    assert world.series.written == [
        (Name.EXTENDS, 1, Mode.CP, "threshold reached"),
        (Name.NEW_TOKENS, 9, Mode.CP, "threshold reached"),
        (Name.RANK_ROWS, 2, Mode.CP),  # of rows 0 to 8, rank 1 of 4 has 1 and 5
    ]
    run(world, TP, 3.0)
    assert world.series.of(Name.RANK_ROWS)[1:] == [(Name.RANK_ROWS, 9, Mode.TP)]
    world.clock.done_until = 2.0
    world.recorder.publish()
    assert world.series.of(Name.EXTEND) == [(Name.EXTEND, 2.0, Mode.CP)]
    world.clock.done_until = 5.0
    world.recorder.publish()
    world.recorder.publish()
    assert world.series.of(Name.EXTEND) == [(Name.EXTEND, 2.0, Mode.CP), (Name.EXTEND, 3.0, Mode.TP)]
    assert len(world.series.of(Name.DECISION)) == 2
    assert len(world.series.of(Name.PULL_EXPOSED, Name.PULLED_BYTES)) == 2  # of the one CP extend
    assert world.clock.streams == [None, "forward stream"] * 2


def test_fewer_rows_than_ranks_are_counted_too(world):
    run(world, TP, 1.0, rows=1)
    assert world.series.of(Name.RANK_ROWS) == [(Name.RANK_ROWS, 1, Mode.TP)]


def test_pulls_belong_to_the_extend_that_runs(world):
    shards = layer_shards(world.layers[0][0])
    into = WeightBuffers(gathered_bytes(shards, 3), 3, "cpu").places(0, shards)
    world.strategy.source.pull(0, shards, into).wait()  # of no extend
    world.strategy.decide(9, batch())
    world.strategy.source.pull(0, shards, into).wait()
    world.recorder.extend_issued(CP, 9, None)
    world.strategy.source.pull(0, shards, into).wait()
    world.recorder.publish()
    own = sum(shard.num_bytes for shard in shards)
    assert world.series.of(Name.PULLED_BYTES) == [(Name.PULLED_BYTES, 2 * own)]


def test_a_prediction_is_compared_once_there_is_a_calibration(world):
    run(world, CP, 2.0)
    world.clock.done_until = 2.0
    world.recorder.publish()
    assert world.series.of(Name.PREDICTED, Name.RATIO) == []
    world.strategy.calibration = cp_from_100_tokens(key())
    model = world.strategy.calibration.to_fit().model
    world.clock.done_until = 100.0
    for decision, mode in ((CP, Mode.CP), (TP, Mode.TP)):
        run(world, decision, 1.0, new=(7, 2), prefix=(0, 64))
        world.recorder.publish()
        predicted = model.seconds(ExtendShape.of([7, 2], [0, 64]), mode)
        assert world.series.of(Name.PREDICTED, Name.RATIO)[-2:] == [
            (Name.PREDICTED, predicted, mode),
            (Name.RATIO, 1.0 / predicted, mode),
        ]


def test_what_calibration_runs_is_not_published(world):
    world.strategy.is_forced = True
    world.strategy.decide(9, batch())
    world.clock.now += 50.0
    world.strategy.is_forced = False
    run(world, TP, 1.0)
    world.clock.done_until = 100.0
    world.recorder.publish()
    assert world.series.of(Name.EXTEND) == [(Name.EXTEND, 1.0, Mode.TP)]


def test_a_decode_step_is_passed_on_and_leaves_no_trace(world):
    world.strategy.decision = TP
    assert world.strategy.decide(1, batch(extend=False)) is TP
    world.recorder.publish()
    assert (world.strategy.asked, world.series.written, world.clock.streams) == (1, [], [])


def test_lengths_that_the_host_does_not_know_have_no_prediction(world):
    world.strategy.calibration = cp_from_100_tokens(key())
    unknown = batch()
    unknown.extend_seq_lens_cpu = unknown.seq_lens_cpu = None
    world.strategy.decide(9, unknown)
    world.recorder.extend_issued(TP, 9, None)
    world.recorder.publish()
    assert len(world.series.of(Name.EXTEND)) == 1
    assert world.series.of(Name.PREDICTED) == []
