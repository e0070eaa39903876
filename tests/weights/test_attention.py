"""The all-heads attention beside upstream's layer: shared but for what depends on heads."""

from types import SimpleNamespace

import torch

from sglang_cp.weights.attention import with_all_heads
from tests.weights.fake_layer import make_layers

SIZE = 3


class Attention(torch.nn.Module):
    """Uses what upstream's forward uses of its layer."""

    def __init__(self, shards):
        super().__init__()
        self.num_heads, self.num_local_heads = 6, 2
        self.attn_mqa = SimpleNamespace(tp_q_head_num=2, layer_id=4)
        self.norm = torch.nn.LayerNorm(6)
        for name, value in vars(shards).items():
            setattr(self, name, value)
        self.w_scale = 1.0
        self.calls = []

    def forward(self, x):
        self.last_mode = "set by forward"
        q = self.q_b_proj(self.norm(x))[0].view(-1, self.num_local_heads, 3)
        latent = torch.einsum("thd,hld->thl", q, self.w_vc)
        value = torch.einsum("thl,hld->thd", latent, self.w_vc).flatten(1)
        return self.attn_mqa.tp_q_head_num, self.o_proj(value)[0]


def gather(layers):
    def stack(read):
        return torch.stack([read(layer) for layer in layers])

    return {
        "q_b_proj.weight": stack(lambda layer: layer.q_b_proj.weight.data),
        "o_proj.weight": stack(lambda layer: layer.o_proj.weight.data),
        "w_kc": stack(lambda layer: layer.w_kc),
        "w_vc": stack(lambda layer: layer.w_vc),
    }


def test_all_heads_equal_the_sum_of_the_ranks_heads_and_leave_the_layer_alone():
    torch.manual_seed(0)  # of 300 other seeds 13 cancel so far that float32 sums in another order differ
    layers = make_layers(SIZE)
    x = torch.randn(5, 6)
    expected = torch.zeros(5, 7)
    for layer in layers:
        q = torch.nn.functional.linear(torch.nn.functional.layer_norm(x, (6,)), layer.q_b_proj.weight).view(5, 2, 3)
        latent = torch.einsum("thd,hld->thl", q, layer.w_vc)
        value = torch.einsum("thl,hld->thd", latent, layer.w_vc).flatten(1)
        expected += torch.nn.functional.linear(value, layer.o_proj.weight)

    base = Attention(layers[0])
    before = dict(base.__dict__)
    all_heads = with_all_heads(base, SIZE, lambda: gather(layers))
    heads, output = all_heads(x)
    assert heads == 6
    torch.testing.assert_close(output, expected)
    assert base.__dict__ == before
    assert base.attn_mqa.tp_q_head_num == 2


def test_it_is_upstreams_class_and_shares_its_modules():
    base = Attention(make_layers(SIZE)[0])
    all_heads = with_all_heads(base, SIZE, dict)
    assert isinstance(all_heads, Attention)
    assert all_heads.norm is base.norm
    base.w_scale = 3.0  # changed by a weight update
    assert all_heads.w_scale == 3.0


def test_weights_are_taken_once_a_forward():
    layers, taken = make_layers(SIZE), []

    def take():
        taken.append(1)
        return gather(layers)

    all_heads = with_all_heads(Attention(layers[0]), SIZE, take)
    all_heads(torch.randn(2, 6))
    all_heads(torch.randn(2, 6))
    assert len(taken) == 2


def test_nothing_is_held_between_forwards():
    """A dequantized w_kc of every layer would be gigabytes."""
    layers = make_layers(SIZE)
    all_heads = with_all_heads(Attention(layers[0]), SIZE, lambda: gather(layers))
    before = set(vars(all_heads))
    all_heads(torch.randn(2, 6))
    assert set(vars(all_heads)) - before == {"last_mode"}
    assert all_heads.o_proj is layers[0].o_proj
