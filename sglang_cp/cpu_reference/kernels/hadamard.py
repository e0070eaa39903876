"""Walsh-Hadamard transform (twin of `sglang.jit_kernel.hadamard.hadamard_transform`)."""

from __future__ import annotations

import torch


def hadamard_transform(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """`scale * x @ H` along the last dimension, `H` the Sylvester matrix; `[..., n]`, n a power of two.

    Butterflies of additions only, in float32: a row's result is the same to the bit in any batch.
    """
    n = x.shape[-1]
    if n & (n - 1):
        raise ValueError(f"The Hadamard transform needs a power of two as last dimension, not {n}.")
    y = x.float()
    half = 1
    while half < n:
        pairs = y.reshape(*x.shape[:-1], n // (2 * half), 2, half)
        low, high = pairs.unbind(-2)
        y = torch.stack((low + high, low - high), dim=-2).flatten(-3)
        half *= 2
    return (y * scale).to(x.dtype)
