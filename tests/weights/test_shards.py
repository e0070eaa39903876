import pytest
import torch

from sglang_cp.weights.shards import layer_shards
from tests.weights.fake_layer import make_layers


def test_shards_are_the_sharded_tensors_with_their_scales():
    plain, scaled = make_layers(1)[0], make_layers(1, scaled=True)[0]
    assert [shard.name for shard in layer_shards(plain)] == ["q_b_proj.weight", "o_proj.weight", "w_kc", "w_vc"]
    assert [shard.name for shard in layer_shards(scaled)] == [
        "q_b_proj.weight",
        "q_b_proj.weight_scale",
        "o_proj.weight",
        "o_proj.weight_scale",
        "w_kc",
        "w_vc",
    ]


def test_swapped_tensors_are_gathered_as_they_lie_and_returned_as_held():
    layer = make_layers(1)[0]
    shard = next(shard for shard in layer_shards(layer) if shard.name == "w_kc")
    assert shard.swapped
    assert shard.dense.is_contiguous()
    assert torch.equal(shard.as_held(shard.dense.unsqueeze(0))[0], layer.w_kc)


def test_a_tensor_replaced_by_a_weight_update_is_seen():
    layer = make_layers(1)[0]
    layer_shards(layer)
    layer.w_vc = torch.ones_like(layer.w_vc)
    shard = next(shard for shard in layer_shards(layer) if shard.name == "w_vc")
    assert (shard.dense == 1).all()


def test_strides_that_cannot_be_gathered_are_refused():
    layer = make_layers(1)[0]
    layer.w_vc = torch.zeros(2, 5, 6)[:, :, ::2]
    with pytest.raises(ValueError, match=r"w_vc of shape .* neither contiguous nor transposed"):
        layer_shards(layer)
