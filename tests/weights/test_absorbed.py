import torch

from sglang_cp.weights.absorbed import absorbed_of_all_heads
from sglang_cp.weights.shards import layer_shards
from tests.weights.fake_layer import make_layers

SIZE = 3


def gathered(layers):
    shards = [{shard.name: shard for shard in layer_shards(layer)} for layer in layers]
    return {
        name: shard.by_rank(torch.stack([of_rank[name].bytes() for of_rank in shards]))
        for name, shard in shards[0].items()
    }


def test_heads_are_in_rank_order_and_lie_as_upstream_holds_them():
    layers = make_layers(SIZE)
    heads = absorbed_of_all_heads(gathered(layers))
    assert set(heads) == {"w_kc", "w_vc"}
    assert torch.equal(heads["w_kc"], torch.cat([layer.w_kc for layer in layers]))
    assert torch.equal(heads["w_vc"], torch.cat([layer.w_vc for layer in layers]))
    assert heads["w_kc"].stride()[1:] == layers[0].w_kc.stride()[1:]


def test_each_ranks_scale_goes_to_its_own_heads():
    """FP8 with one scale a rank: rank r's weights times scale r, which upstream would apply in its kernel."""
    layers = make_layers(SIZE)
    for rank, layer in enumerate(layers):
        layer.w_kc, layer.w_vc = layer.w_kc.to(torch.float8_e4m3fn), layer.w_vc.to(torch.float8_e4m3fn)
        layer.w_scale = torch.tensor(0.5 + rank)
    heads = absorbed_of_all_heads(gathered(layers))
    for name in ("w_kc", "w_vc"):
        expected = torch.cat([getattr(layer, name).float() * layer.w_scale for layer in layers])
        assert heads[name].dtype is torch.bfloat16
        assert torch.equal(heads[name], expected.to(torch.bfloat16))
    assert heads["w_scale"] == 1.0


def test_scales_per_block_are_gathered_by_heads():
    layers = make_layers(SIZE)
    for rank, layer in enumerate(layers):
        layer.w_scale_k = torch.full((2, 1, 4), float(rank))
    heads = absorbed_of_all_heads(gathered(layers))
    assert torch.equal(heads["w_scale_k"], torch.cat([layer.w_scale_k for layer in layers]))
