"""MXFP4 (OCP Microscaling Formats 1.0): twins of the aiter kernels that upstream's Quark w4a4 scheme calls on ROCm.

32 values along a row share an e8m0 scale, the byte b for 2 ** (b - 127); a value is e2m1, two in a byte, the even
column in the low four bits.
"""

from __future__ import annotations

import torch

GROUP = 32
_MAGNITUDES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)
_MIDPOINTS = (_MAGNITUDES[1:] + _MAGNITUDES[:-1]) / 2
_LARGEST_EXPONENT = 2  # of e2m1: 6 = 1.5 * 2 ** 2
_ROUNDS_UP_FROM = 1.75  # a largest value of 7 * 2 ** e would be 8 * 2 ** e in e2m1's two significant bits
_BIAS = 127


def dynamic_mxfp4_quant(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed values uint8 `[rows, n / 2]` and e8m0 scales uint8 `[rows, n / 32]` of `x` `[rows, n]`.

    The scale puts the group's largest value, rounded to two significant bits, at e2m1's largest exponent (Quark's
    `scale_calculation_mode: even`); values are rounded half to even and saturate at 6.
    """
    groups = x.double().unflatten(-1, (-1, GROUP))
    mantissa, exponent = torch.frexp(groups.abs().amax(-1))  # mantissa in [0.5, 1), or 0
    exponent = exponent - 1 + (2 * mantissa >= _ROUNDS_UP_FROM).int() - _LARGEST_EXPONENT
    exponent = torch.where(mantissa == 0, -_BIAS, exponent).clamp(-_BIAS, _BIAS)
    scaled = (groups / _power_of_two(exponent).unsqueeze(-1)).flatten(-2)
    codes = _nearest(scaled.abs()) | (torch.signbit(scaled).to(torch.uint8) << 3)
    return codes[..., ::2] | (codes[..., 1::2] << 4), (exponent + _BIAS).to(torch.uint8)


def dequantize(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Float64 `[rows, n]` of packed values `[rows, n / 2]` and scales `[rows, n / 32]`."""
    codes = torch.stack([packed & 0xF, packed >> 4], dim=-1).flatten(-2).long()
    magnitude = _MAGNITUDES[codes & 0x7]
    values: torch.Tensor = torch.where(codes >= 8, -magnitude, magnitude).unflatten(-1, (-1, GROUP))
    return (values * _power_of_two(scales.int() - _BIAS).unsqueeze(-1)).flatten(-2)


def gemm_afp4wfp4(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scales: torch.Tensor,
    w_scales: torch.Tensor,
    dtype: torch.dtype,
    y: torch.Tensor,
) -> None:
    """Write x w^T into `y` `[rows, outputs]`, summed in float64 and rounded once; both factors are packed."""
    y.copy_(dequantize(x, x_scales) @ dequantize(w, w_scales).T)


def gemm_afp4wfp4_pre_quant(
    x: torch.Tensor, w: torch.Tensor, w_scales: torch.Tensor, dtype: torch.dtype, y: torch.Tensor
) -> None:
    """As `gemm_afp4wfp4`, for an `x` `[rows, inputs]` that is not quantized yet."""
    packed, x_scales = dynamic_mxfp4_quant(x)
    gemm_afp4wfp4(packed, w, x_scales, w_scales, dtype, y)


def _nearest(magnitude: torch.Tensor) -> torch.Tensor:
    """Code 0 to 7 of the nearest e2m1 magnitude; of two as near, the even code's (its mantissa bit is zero)."""
    below = torch.bucketize(magnitude, _MIDPOINTS)  # a midpoint goes to the lower code
    at_midpoint = torch.isin(magnitude, _MIDPOINTS)
    return torch.where(at_midpoint, below + below % 2, below).to(torch.uint8)


def _power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    return torch.exp2(exponent.double())
