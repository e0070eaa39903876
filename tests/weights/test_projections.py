"""A projection over every rank's shards equals the projection with the complete weight."""

import pytest
import torch
import torch.nn.functional as F

from sglang_cp.weights.projections import ColumnProjection, RowProjection
from tests.weights.fake_layer import make_layers

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
