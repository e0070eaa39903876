"""The indexer's fused kernels (twins of `sglang.jit_kernel.dsv32` and of dsv4's `fused_q_indexer_rope_first_quant`).

Both rotate the leading dimensions in interleaved pairs, in float32, and leave out the Hadamard rotation.
"""

from __future__ import annotations

import torch

from sglang_cp.cpu_reference.kernels import index_pages, quant


def fused_q_indexer_rope_first_quant(
    q_input: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: float,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotated and quantized queries `[rows, heads, 128]`, and head gates `[rows, heads, 1]` times their scales.

    weight `[rows, heads]`; cos_sin_cache `[positions, 64]` holds 32 cosines, then 32 sines; positions `[rows]`.
    """
    rotated = rotate_leading_pairs(q_input.float(), cos_sin_cache[positions].unsqueeze(1))
    values, scale = quant.act_quant(rotated, rotated.shape[-1])
    return values, weight.float().unsqueeze(-1) * weight_scale * scale


def fused_k_indexer_norm_rope(
    k_input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """LayerNorm, then rotation: index keys `[rows, 128]` in `k_input`'s dtype."""
    k = k_input.float()
    normalized = torch.nn.functional.layer_norm(k, k.shape[-1:], weight.float(), bias.float(), eps)
    return rotate_leading_pairs(normalized, cos_sin_cache[positions]).to(k_input.dtype)


def fused_k_indexer_norm_rope_store(
    k_input: torch.Tensor,
    cache: torch.Tensor,
    out_cache_loc: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    page_size: int,
) -> None:
    """As `fused_k_indexer_norm_rope`, then store at slots `out_cache_loc` `[rows]`."""
    key = fused_k_indexer_norm_rope(k_input, weight, bias, eps, cos_sin_cache, positions)
    index_pages.fused_store_index_k_cache(key, cache, out_cache_loc, page_size)


def rotate_leading_pairs(x: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    """Rotate x's leading pairs (0, 1), (2, 3), ... by the angles whose cosines and sines `cos_sin` concatenates."""
    cos, sin = cos_sin.float().chunk(2, dim=-1)
    width = cos_sin.shape[-1]
    real, imaginary = x[..., :width:2], x[..., 1:width:2]
    rotated = torch.stack((real * cos - imaginary * sin, real * sin + imaginary * cos), dim=-1).flatten(-2)
    return torch.cat([rotated, x[..., width:]], dim=-1)
