"""MXFP4: a definition by search over all 16 values, and the packing that SGLang reads."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_cp.cpu_reference.kernels import mxfp4

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def group(*values: float) -> torch.Tensor:
    """One row of one group, padded with zeros."""
    return torch.tensor([[*values, *([0.0] * (32 - len(values)))]])


@given(seed=st.integers(0, 2**16), magnitude=st.floats(1e-20, 1e20))
def test_values_are_the_nearest_ones_and_use_the_range(seed: int, magnitude: float) -> None:
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(seed)) * magnitude
    packed, scales = mxfp4.dynamic_mxfp4_quant(x)
    assert packed.shape == (3, 32)
    assert scales.shape == (3, 2)
    scale = torch.exp2(scales.double() - 127).repeat_interleave(32, dim=1)
    restored = mxfp4.dequantize(packed, scales)
    table = torch.tensor([*MAGNITUDES, *(-m for m in MAGNITUDES)]).double()
    distance = (x.double().unsqueeze(-1) - table * scale.unsqueeze(-1)).abs()
    torch.testing.assert_close((x.double() - restored).abs(), distance.amin(-1), rtol=1e-12, atol=0)
    largest = (x.double().abs() / scale).unflatten(1, (-1, 32)).amax(-1)
    assert ((largest >= 3.5) & (largest < 7)).all()


@pytest.mark.parametrize(
    ("largest", "exponent"), [(6.0, 0), (6.99, 0), (7.0, 1), (4.0, 0), (3.5, 0), (3.49, -1), (12.0, 1)]
)
def test_the_scale_rounds_the_largest_value_to_two_bits(largest: float, exponent: int) -> None:
    _, scales = mxfp4.dynamic_mxfp4_quant(group(1e-3, -largest))
    assert scales.item() == 127 + exponent


def test_halves_go_to_the_even_value() -> None:
    halves = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
    packed, scales = mxfp4.dynamic_mxfp4_quant(group(6.0, *halves, *(-half for half in halves)))
    got = mxfp4.dequantize(packed, scales)[0, 1:15].tolist()
    expected = [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    assert got == expected + [-value for value in expected]


def test_the_even_column_is_in_the_low_bits() -> None:
    packed, _ = mxfp4.dynamic_mxfp4_quant(group(6.0, 0.5, -1.0))
    assert packed[0, :2].tolist() == [0x17, 0x0A]


def test_a_zero_group_stays_zero() -> None:
    packed, scales = mxfp4.dynamic_mxfp4_quant(torch.zeros(1, 64))
    assert not mxfp4.dequantize(packed, scales).any()


@pytest.mark.parametrize("pre_quant", [False, True])
def test_a_product_is_that_of_the_dequantized_matrices_rounded_once(pre_quant: bool) -> None:
    x, w = torch.randn(4, 96), torch.randn(8, 96)
    (x_packed, x_scales), (w_packed, w_scales) = mxfp4.dynamic_mxfp4_quant(x), mxfp4.dynamic_mxfp4_quant(w)
    y = torch.empty(4, 8, dtype=torch.bfloat16)
    if pre_quant:
        mxfp4.gemm_afp4wfp4_pre_quant(x, w_packed, w_scales, y.dtype, y)
    else:
        mxfp4.gemm_afp4wfp4(x_packed, w_packed, x_scales, w_scales, y.dtype, y)
    expected = mxfp4.dequantize(x_packed, x_scales) @ mxfp4.dequantize(w_packed, w_scales).T
    assert torch.equal(y, expected.bfloat16())
    assert (expected - x.double() @ w.double().T).norm() < 0.3 * expected.norm()
