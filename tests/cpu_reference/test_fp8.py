"""FP8 linear kernels: the definition, and sums that no cut of the work moves."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_cp.cpu_reference.kernels import fp8
from sglang_cp.cpu_reference.kernels.quant import FP8


def random_fp8(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(FP8)


@pytest.mark.parametrize(("n", "k"), [(256, 384), (200, 300)])
def test_a_block_product_is_that_of_the_dequantized_matrices(n: int, k: int) -> None:
    a, b = random_fp8(7, k), random_fp8(n, k)
    groups, blocks = -(-k // 128), -(-n // 128)
    a_scale, b_scale = torch.rand(7, groups) + 0.5, torch.rand(blocks, groups) + 0.5
    expected = torch.zeros(7, n, dtype=torch.float64)
    for group in range(groups):
        columns = slice(group * 128, (group + 1) * 128)
        for block in range(blocks):
            rows = slice(block * 128, (block + 1) * 128)
            product = a[:, columns].double() @ b[rows, columns].double().T
            expected[:, rows] += product * a_scale[:, group, None].double() * b_scale[block, group].double()
    got = fp8.w8a8_block_fp8_matmul_triton(a, b, a_scale, b_scale, [128, 128], torch.float64)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-9)
    rounded = fp8.w8a8_block_fp8_matmul_triton(a, b, a_scale, b_scale, [128, 128], torch.bfloat16)
    assert torch.equal(rounded, got.bfloat16())


def test_a_channel_product_scales_rows_and_columns() -> None:
    x, w, bias = random_fp8(3, 64), random_fp8(64, 5), torch.randn(5)
    x_scale, w_scale = torch.rand(3, 1) + 0.5, torch.rand(5, 1) + 0.5
    expected = (x.double() * x_scale.double()) @ (w.double() * w_scale.double().T) + bias.double()
    got = fp8.apply_fallback_scaled_mm(x, w, x_scale, w_scale, x.shape, [3, 1, 5], bias, torch.float64)
    torch.testing.assert_close(got, expected.view(3, 1, 5), rtol=1e-12, atol=1e-9)


@given(seed=st.integers(0, 2**16), group_size=st.sampled_from([32, 128]))
def test_each_group_of_a_row_has_its_own_scale(seed: int, group_size: int) -> None:
    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(seed)) * torch.logspace(-3, 3, 256)
    values, scale = fp8.per_token_group_quant_fp8(x, group_size)
    assert scale.shape == (3, 256 // group_size)
    restored = values.float().unflatten(1, (-1, group_size)) * scale.unsqueeze(-1)
    original = x.unflatten(1, (-1, group_size))
    assert ((restored - original).abs() <= original.abs().amax(-1, keepdim=True) / 16).all()


def test_small_activations_keep_a_scale_of_their_own() -> None:
    """Index keys have a floor of 1e-4 under their largest value; upstream's linear layers have 1e-10."""
    _, scale = fp8.per_token_group_quant_fp8(torch.full((1, 128), 1e-6), 128)
    torch.testing.assert_close(scale, torch.tensor([[1e-6 / 448]]), rtol=1e-6, atol=0)


def test_float64_activations_are_quantized_as_their_own_dtype_is() -> None:
    x = torch.randn(5, 256).bfloat16()
    for part, same in zip(
        fp8.per_token_group_quant_fp8(x, 128), fp8.per_token_group_quant_fp8(x.double(), 128), strict=True
    ):
        assert torch.equal(part, same)


def test_a_weight_takes_a_given_scale() -> None:
    values, scale = fp8.scaled_fp8_quant(torch.tensor([[1.0, -900.0, 2000.0]]), torch.tensor(2.0))
    assert values.float().tolist() == [[0.5, -448.0, 448.0]]
    assert scale == 2.0
