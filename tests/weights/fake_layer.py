"""A stand-in for upstream's attention layer: sharded linears with a quantization method, absorbed tensors."""

from types import SimpleNamespace

import torch
import torch.nn.functional as F


class UnquantizedLinearMethod:
    """Named as upstream's, which is how plain matrices are recognised."""

    def apply(self, layer, x, bias=None):
        return F.linear(x, layer.weight, bias)


class ScaledLinearMethod:
    """A format with a scale of its own on each shard, which one GEMM over several shards would get wrong."""

    def apply(self, layer, x, bias=None):
        assert layer.weight.format_note == "kept"
        return F.linear(x, layer.weight * layer.weight_scale, bias)


class Linear(torch.nn.Module):
    def __init__(self, weight, scale=None):
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.weight.format_note = "kept"
        self.quant_method = UnquantizedLinearMethod()
        if scale is not None:
            self.weight_scale = torch.nn.Parameter(scale, requires_grad=False)
            self.quant_method = ScaledLinearMethod()

    @property
    def complete(self):
        return self.weight * self.weight_scale if hasattr(self, "weight_scale") else self.weight


def make_layers(size, *, seed=0, scaled=False, heads_per_rank=2, q_in=6, head_dim=3, nope=4, lora=5, hidden=7):
    """One layer as each of ``size`` ranks holds it."""
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape):
        return torch.randn(*shape, generator=generator)

    def scale(rank):
        return torch.full((1, 1), 2.0 + rank) if scaled else None

    return [
        SimpleNamespace(
            q_b_proj=Linear(rand(heads_per_rank * head_dim, q_in), scale(rank)),
            o_proj=Linear(rand(hidden, heads_per_rank * head_dim), scale(rank)),
            # Upstream holds w_kc with its last two dimensions swapped in memory.
            w_kc=rand(heads_per_rank, lora, nope).transpose(1, 2),
            w_vc=rand(heads_per_rank, lora, head_dim),
            w_scale_k=None,
            w_scale_v=None,
        )
        for rank in range(size)
    ]
