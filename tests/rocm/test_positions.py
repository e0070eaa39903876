"""Positions of a CP extend, as aiter's RoPE kernels take them."""

import pytest
import torch

from sglang_cp.layout import TokenLayout


@pytest.mark.parametrize("rank", range(4))
def test_the_position_of_a_single_row_has_a_stride_of_one(rank):
    # A tensor of one element passes for contiguous with any stride; aiter asks for a last stride of 1.
    own = TokenLayout(4, 4, rank).own(torch.arange(4) + 30)
    assert own.tolist() == [30 + rank]
    assert own.stride() == (1,)
