"""A projection over every rank's shards equals the projection with the complete weight."""

import pytest
import torch
import torch.nn.functional as F

from sglang_cp.weights.projections import ColumnProjection, RowProjection
from tests.weights.fake_layer import ScaledLinearMethod, make_layers

SIZE, ROWS = 3, 5


def gathered(layers, module):
    names = dict(getattr(layers[0], module).named_parameters())
    return {name: torch.stack([getattr(getattr(layer, module), name).data for layer in layers]) for name in names}


@pytest.fixture(params=[False, True], ids=["one matrix", "scale per shard"])
def layers(request):
    return make_layers(SIZE, scaled=request.param)


def test_column_projection_gives_all_heads_in_rank_order(layers):
    complete = torch.cat([layer.q_b_proj.complete for layer in layers])
    x = torch.randn(ROWS, complete.shape[1])
    output, bias = ColumnProjection(layers[0].q_b_proj, gathered(layers, "q_b_proj"))(x)
    torch.testing.assert_close(output, F.linear(x, complete))
    assert bias is None


def test_row_projection_is_the_sum_over_shards_and_complete(layers):
    complete = torch.cat([layer.o_proj.complete for layer in layers], dim=1)
    x = torch.randn(ROWS, complete.shape[1])
    output, _ = RowProjection(layers[0].o_proj, gathered(layers, "o_proj"))(x)
    torch.testing.assert_close(output, F.linear(x, complete))


def test_wrong_rank_order_of_shards_is_a_different_answer(layers):
    complete = torch.cat([layer.o_proj.complete for layer in layers], dim=1)
    x = torch.randn(ROWS, complete.shape[1])
    output, _ = RowProjection(layers[0].o_proj, gathered(layers[::-1], "o_proj"))(x)
    assert not torch.allclose(output, F.linear(x, complete))


def test_a_bias_is_refused(layers):
    layers[0].o_proj.bias = torch.zeros(7)
    with pytest.raises(ValueError, match="bias"):
        RowProjection(layers[0].o_proj, gathered(layers, "o_proj"))


@pytest.mark.parametrize("rows_innermost", [False, True])
def test_an_input_that_is_quantized_already_is_dealt_with_its_scales(rows_innermost):
    """As ROCm's fused kernels hand it over; each rank's part keeps the memory order that its kernel wants."""
    layers = make_layers(SIZE, scaled=True)
    complete = torch.cat([layer.o_proj.complete for layer in layers], dim=1)
    values = torch.randint(-8, 8, (ROWS, complete.shape[1])).float()
    scales = torch.rand(ROWS, complete.shape[1])
    if rows_innermost:
        scales = scales.t().contiguous().t()

    class TakesScales(ScaledLinearMethod):
        def apply(self, layer, x, bias=None):
            assert x[0].is_contiguous()
            assert x[1].t().is_contiguous() if rows_innermost else x[1].is_contiguous()
            return super().apply(layer, x[0] * x[1], bias)

    layers[0].o_proj.quant_method = TakesScales()
    output, _ = RowProjection(layers[0].o_proj, gathered(layers, "o_proj"))((values, scales))
    torch.testing.assert_close(output, F.linear(values * scales, complete))
