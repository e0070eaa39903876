"""Layers pulled one ahead into two buffers: right bytes, right order, never a buffer in use."""

import pytest
import torch

from sglang_cp.weights.buffers import WeightBuffers, gathered_bytes
from sglang_cp.weights.pipeline import WeightPipeline
from sglang_cp.weights.shards import layer_shards
from tests.weights.fake_layer import make_layers

SIZE = 3


class LateSource:
    """Copies at ``wait``, as late as a source may; so a pull that starts too early into a used buffer shows up."""

    def __init__(self, layers):
        """``layers[i][r]``: layer i as rank r holds it; this process is rank 0."""
        self.layers = layers
        self.started = []

    name = "late"

    def pull(self, layer, shards, into):
        assert shards[0].tensor.data_ptr() == self.layers[layer][0].q_b_proj.weight.data_ptr()
        self.started.append(layer)
        for place in into.values():
            place.zero_()  # what was there is lost from the start of the pull on
        return _LateCopy([layer_shards(rank) for rank in self.layers[layer]], into)

    def refresh(self):
        self.refreshed = list(self.started)


class _LateCopy:
    def __init__(self, ranks, into):
        self.ranks, self.into = ranks, into

    awaited = staticmethod(lambda: None)

    def wait(self):
        self.awaited()
        for rank, shards in enumerate(self.ranks):
            for shard in shards:
                self.into[shard.name][rank].copy_(shard.bytes())


@pytest.fixture
def layers():
    return [make_layers(SIZE, seed=seed) for seed in range(5)]


@pytest.fixture
def source(layers):
    return LateSource(layers)


@pytest.fixture
def pipeline(layers, source):
    return WeightPipeline([ranks[0] for ranks in layers], source, SIZE, torch.device("cpu"))


def expect(weights, ranks):
    for rank, layer in enumerate(ranks):
        assert torch.equal(weights["q_b_proj.weight"][rank], layer.q_b_proj.weight)
        assert torch.equal(weights["o_proj.weight"][rank], layer.o_proj.weight)
        assert torch.equal(weights["w_kc"][rank], layer.w_kc)
        assert torch.equal(weights["w_vc"][rank], layer.w_vc)


def test_each_layer_gets_its_weights_while_the_next_is_on_its_way(pipeline, source, layers):
    pipeline.begin()
    for index, ranks in enumerate(layers):
        weights = pipeline.take(index)
        assert source.started == list(range(min(index + 2, len(layers))))
        expect(weights, ranks)  # also after the next layer's pull has started


def test_all_layers_are_pulled_once_and_nothing_is_left_pending(pipeline, source, layers):
    pipeline.pull_all()
    assert source.started == list(range(len(layers)))
    assert pipeline._pending is None


def test_every_extend_pulls_anew(pipeline, source, layers):
    for _ in range(2):
        pipeline.begin()
        for index, ranks in enumerate(layers):
            expect(pipeline.take(index), ranks)
    assert source.started == [0, 1, 2, 3, 4] * 2


def test_an_extend_that_failed_half_way_leaves_nothing_behind(pipeline, layers):
    pipeline.begin()
    pipeline.take(0)
    pipeline.take(1)
    pipeline.begin()
    for index, ranks in enumerate(layers):
        expect(pipeline.take(index), ranks)


def test_layers_of_different_shapes_share_the_buffers():
    layers = [make_layers(SIZE, seed=0), make_layers(SIZE, seed=1, hidden=11), make_layers(SIZE, seed=2, q_in=2)]
    pipeline = WeightPipeline([ranks[0] for ranks in layers], LateSource(layers), SIZE, torch.device("cpu"))
    pipeline.begin()
    for index, ranks in enumerate(layers):
        expect(pipeline.take(index), ranks)
    assert pipeline.buffer_bytes == 2 * max(gathered_bytes(layer_shards(ranks[0]), SIZE) for ranks in layers)


def test_tensors_in_a_buffer_are_aligned_and_do_not_overlap(layers):
    shards = layer_shards(layers[0][0])
    places = WeightBuffers(gathered_bytes(shards, SIZE), SIZE, torch.device("cpu")).places(0, shards)
    for value, place in enumerate(places.values()):
        place.fill_(value)
    for value, place in enumerate(places.values()):
        assert (place == value).all()
    starts = [place.data_ptr() for place in places.values()]
    assert all((start - starts[0]) % 256 == 0 for start in starts)


def test_a_layer_out_of_turn_gets_its_own_weights(pipeline, layers):
    """The pull that is on its way is of another layer: its bytes must not be taken for this one's."""
    pipeline.begin()
    expect(pipeline.take(3), layers[3])
    expect(pipeline.take(4), layers[4])


def test_a_change_of_weights_waits_for_pulls_and_refreshes_before_the_next(pipeline, source, layers, monkeypatch):
    """Nothing that was pulled before the change may be used after it."""
    steps = []
    monkeypatch.setattr(
        "sglang_cp.weights.pipeline.together", lambda group, step: steps.append(step.__name__) or step()
    )
    pipeline.begin()  # an extend that failed leaves this pull behind
    with pipeline.weights_change(group=None):
        steps.append("change")
        for rank in layers[0]:
            rank.o_proj.weight.data.mul_(2)
    assert steps == ["_settle", "change", "_refresh"]
    assert source.refreshed == [0]
    pipeline.begin()
    expect(pipeline.take(0), layers[0])


def test_a_change_that_fails_refreshes_all_the_same(pipeline, source, monkeypatch):
    monkeypatch.setattr("sglang_cp.weights.pipeline.together", lambda group, step: step())
    with pytest.raises(OSError, match="disk"), pipeline.weights_change(group=None):
        raise OSError("disk")
    assert source.refreshed == []


def test_what_the_host_waits_for_is_told_while_it_waits(pipeline, layers, monkeypatch):
    told = []
    monkeypatch.setattr(_LateCopy, "awaited", lambda _: told.append(pipeline.awaited))
    pipeline.pull_all()
    assert told == list(range(len(layers)))
    assert pipeline.awaited is None
