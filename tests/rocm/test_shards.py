"""AITER's pre-shuffled weights: each rank's shard as that rank loaded it, never re-laid out."""

from types import SimpleNamespace

import pytest
import torch

from sglang_cp.weights.projections import ColumnProjection, RowProjection
from sglang_cp.weights.shards import layer_shards

SIZE, IN, OUT = 4, 32, 64


def shuffle(weight):
    """aiter.ops.shuffle.shuffle_weight(weight, (16, 16)): tiles of 16 rows, 16 bytes of a row together."""
    return weight.view(OUT // 16, 16, IN // 16, 16).permute(0, 2, 1, 3).contiguous().view(OUT, IN)


def unshuffle(weight):
    return weight.reshape(OUT // 16, IN // 16, 16, 16).permute(0, 2, 1, 3).reshape(OUT, IN)


class PreShuffled:
    """As quark's FP8 scheme leaves a weight on ROCm: shuffled, then transposed without a copy, with channel scales."""

    def __init__(self):
        self.seen = []

    def apply(self, layer, x, bias=None):
        assert layer.weight.is_shuffled
        assert layer.weight.stride() == (1, IN)
        self.seen.append(layer.weight)
        return (x @ unshuffle(layer.weight.t()).T) * layer.weight_scale.T


@pytest.fixture
def ranks():
    generator = torch.Generator().manual_seed(0)
    method, linears = PreShuffled(), []
    for _ in range(SIZE):
        linear = torch.nn.Module()
        linear.plain = torch.randn(OUT, IN, generator=generator)
        linear.weight = torch.nn.Parameter(shuffle(linear.plain).t(), requires_grad=False)
        linear.weight.is_shuffled = True
        linear.weight_scale = torch.nn.Parameter(torch.rand(OUT, 1, generator=generator), requires_grad=False)
        linear.quant_method = method
        linears.append(linear)
    return linears


def gathered(linears):
    """What the pipeline hands over: bytes of every rank's shards, back as tensors."""
    by_rank = [
        layer_shards(SimpleNamespace(q_b_proj=torch.nn.Module(), o_proj=linear, w_kc=None)) for linear in linears
    ]
    return {
        of[0].name.removeprefix("o_proj."): of[0].by_rank(torch.stack([shard.bytes() for shard in of]))
        for of in zip(*by_rank, strict=True)
    }


def expected(linear, x):
    return (x @ linear.plain.T) * linear.weight_scale.T


def test_row_projection_sums_over_shards_as_loaded(ranks):
    x = torch.randn(3, SIZE * IN)
    output, _ = RowProjection(ranks[1], gathered(ranks))(x)
    parts = [expected(linear, part) for linear, part in zip(ranks, x.chunk(SIZE, dim=1), strict=True)]
    torch.testing.assert_close(output, sum(parts))
    for seen, linear in zip(ranks[0].quant_method.seen, ranks, strict=True):
        assert torch.equal(seen, linear.weight)


def test_column_projection_takes_shards_as_loaded(ranks):
    x = torch.randn(3, IN)
    output, _ = ColumnProjection(ranks[2], gathered(ranks))(x)
    torch.testing.assert_close(output, torch.cat([expected(linear, x) for linear in ranks], dim=1))
