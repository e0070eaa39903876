import pytest
import torch

from sglang_cp.weights.shards import Shard, layer_shards, replace_shard
from tests.weights.fake_layer import make_layers


def named(layer, name):
    return next(shard for shard in layer_shards(layer) if shard.name == name)


def test_shards_are_the_sharded_tensors_with_their_scales():
    plain, scaled = make_layers(1)[0], make_layers(1, scaled=True)[0]
    plain.w_scale, scaled.w_scale = 1.0, torch.tensor(0.5)
    assert [shard.name for shard in layer_shards(plain)] == ["q_b_proj.weight", "o_proj.weight", "w_kc", "w_vc"]
    assert [shard.name for shard in layer_shards(scaled)] == [
        "q_b_proj.weight",
        "q_b_proj.weight_scale",
        "o_proj.weight",
        "o_proj.weight_scale",
        "w_kc",
        "w_vc",
        "w_scale",
    ]


TENSORS = {
    "contiguous": torch.arange(12.0).view(3, 4),
    "transposed": torch.arange(24, dtype=torch.bfloat16).view(2, 3, 4).transpose(1, 2),
    "padded for a kernel": torch.arange(32, dtype=torch.int32).view(4, 8).t()[:6],
    "inside another": torch.arange(40.0)[8:20].view(3, 4),
    "bytes": torch.arange(6, dtype=torch.uint8),
    "one number": torch.tensor(2.5),
}


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_bytes_travel_as_they_lie_and_come_back_as_held(tensor):
    shard = Shard("t", tensor)
    other = Shard(
        "t",
        tensor.clone(memory_format=torch.preserve_format).as_strided(tensor.shape, tensor.stride())
        if tensor.is_contiguous()
        else tensor,
    )
    gathered = torch.stack([shard.bytes(), other.bytes()])
    assert gathered.shape == (2, shard.num_bytes)
    by_rank = shard.by_rank(gathered)
    for rank in range(2):
        assert by_rank[rank].dtype == tensor.dtype
        assert by_rank[rank].stride() == tensor.stride()
        assert torch.equal(by_rank[rank], tensor)


def test_a_moved_shard_is_the_same_parameter_with_the_same_strides():
    layer = make_layers(1)[0]
    for name in ("o_proj.weight", "w_kc"):
        shard, before = named(layer, name), named(layer, name).tensor.clone()
        memory = torch.zeros(512 + shard.num_bytes, dtype=torch.uint8)[512:]
        memory.copy_(shard.bytes())
        parameter = layer.o_proj.weight
        replace_shard(layer, shard, shard.in_bytes(memory))
        moved = named(layer, name)
        assert layer.o_proj.weight is parameter
        assert moved.tensor.data_ptr() == memory.data_ptr()
        assert moved.tensor.stride() == shard.tensor.stride()
        assert torch.equal(moved.tensor, before)


def test_a_tensor_replaced_by_a_weight_update_is_seen():
    layer = make_layers(1)[0]
    layer_shards(layer)
    layer.w_vc = torch.ones_like(layer.w_vc)
    assert (named(layer, "w_vc").tensor == 1).all()
