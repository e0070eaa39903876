"""FP8 linear layers: twins of the kernels that upstream's block FP8 and Quark FP8 methods call.

Products are summed in float64 and rounded once, to the dtype that the caller asks for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sglang_cp.cpu_reference.kernels.quant import FP8, quantize


def per_token_group_quant_fp8(
    x: torch.Tensor, group_size: int, eps: float = 1e-10, column_major_scales: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """FP8 values and float32 scales `[rows, n / group_size]` of `x` `[rows, n]`; only strides may be column-major."""
    return quantize(x, group_size, round_scale_up_to_power_of_two=False, min_amax=eps)


def w8a8_block_fp8_matmul_triton(
    A: torch.Tensor,
    B: torch.Tensor,
    As: torch.Tensor,
    Bs: torch.Tensor,
    block_size: Sequence[int],
    output_dtype: torch.dtype = torch.float16,
) -> torch.Tensor:
    """A B^T: A FP8 `[rows, k]`, scaled in groups by As `[rows, k / block_k]`; B FP8 `[n, k]`, in blocks by Bs.

    Bs is `[ceil(n / block_n), ceil(k / block_k)]`.
    """
    block_n, block_k = block_size
    (n, k), groups = B.shape, As.repeat_interleave(block_k, dim=-1)
    blocks = Bs.repeat_interleave(block_n, dim=0).repeat_interleave(block_k, dim=1)
    product = (A.double() * groups[..., :k].double()) @ (B.double() * blocks[:n, :k].double()).T
    return product.to(output_dtype)


def apply_fallback_scaled_mm(
    qinput: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    weight_scale: torch.Tensor,
    input_2d_shape: torch.Size,
    output_shape: Sequence[int],
    bias: torch.Tensor | None,
    input_dtype: torch.dtype,
) -> torch.Tensor:
    """qinput FP8 `[rows, k]` scaled by rows with x_scale `[rows, 1]`, times weight FP8 `[k, n]` scaled by columns.

    weight_scale is `[n, 1]`, or one scale for all columns.
    """
    product = (qinput.double() @ weight.double()) * x_scale.double() * weight_scale.double().t()
    if bias is not None:
        product += bias.double()
    return product.to(input_dtype).view(*output_shape)


def scaled_fp8_quant(input: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """FP8 values of `input` for a given scale of the whole tensor: how upstream merges a weight's scales."""
    largest = torch.finfo(FP8).max
    return (input.float() / scale).clamp(-largest, largest).to(FP8), scale
