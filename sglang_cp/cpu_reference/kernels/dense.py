"""Dense products accumulated in float64 and rounded once, so that no result depends on how the work was cut.

A GEMM sums in another order for another number of rows, and tensor parallelism sums rounded parts. Either moves a
hidden state by an ulp, and over a long prompt that suffices to swap two keys at the top-k boundary, which moves a
logprob by tenths: the reference would disagree with itself. Here a rank's part of a row-parallel sum stays float64
until the norm that follows its all-reduce. Runs at tp 1, at tp 2 and with context parallelism then see the same
numbers, in both modes, and any difference is a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_linear = torch.nn.functional.linear
_bmm = torch.bmm
_matmul = torch.matmul

_ROUNDED = (torch.float32, torch.bfloat16)


def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`torch.nn.functional.linear`; float32 and BF16 products are summed in float64."""
    if input.dtype not in _ROUNDED:
        return _linear(input, weight, bias)
    return _linear(input.double(), weight.double(), None if bias is None else bias.double()).to(input.dtype)


def bmm(input: torch.Tensor, mat2: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """`torch.bmm`; float32 and BF16 products are summed in float64."""
    if input.dtype not in _ROUNDED:
        return _bmm(input, mat2) if out is None else _bmm(input, mat2, out=out)
    product = _bmm(input.double(), mat2.double()).to(input.dtype)
    return product if out is None else out.copy_(product)


def matmul(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """`torch.matmul`; float32 and BF16 products are summed in float64."""
    if input.dtype not in _ROUNDED:
        return _matmul(input, other)
    return _matmul(input.double(), other.double()).to(input.dtype)


def apply_linear(
    apply: Callable[..., torch.Tensor], method: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Around `UnquantizedLinearMethod.apply`: a row-parallel layer's part of a sum stays float64."""
    if hasattr(layer, "input_is_parallel"):
        return _linear(x.double(), layer.weight.double(), None if bias is None else bias.double())
    return apply(method, layer, x, bias)


def apply_quantized_linear(
    apply: Callable[..., torch.Tensor], method: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Around upstream's FP8 and Quark `apply`: a row-parallel layer's part of a sum stays float64.

    Upstream returns its input's dtype, and quantization gives the same values for the same numbers in float64.
    """
    return apply(method, layer, x.double() if hasattr(layer, "input_is_parallel") else x, bias)


def apply_mxfp4_linear(
    apply: Callable[..., torch.Tensor], scheme: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Around `QuarkW4A4MXFP4.apply_weights`, which returns the model's dtype unless it is given the output tensor."""
    if x.dtype is not torch.float64:
        return apply(scheme, layer, x, bias)
    return apply(scheme, layer, (x, None, x.new_empty(x.shape[0], layer.weight.shape[0])), bias)


def rms_norm(forward: Callable[..., Any], norm: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Around `RMSNorm.forward_native`: rounds the complete float64 sum to the model's dtype first."""
    return forward(norm, x.to(norm.weight.dtype) if x.dtype is torch.float64 else x, *args, **kwargs)


def fused_moe(layer: Any, x: torch.Tensor, topk_output: Any, runner_config: Any) -> torch.Tensor:
    """In place of `moe_forward_native`: this rank's part of the routed experts' sum, float64 `[rows, hidden]`.

    x `[rows, hidden]`; w13 `[experts, 2 * intermediate, hidden]`, gate then up; w2 `[experts, hidden, intermediate]`.
    """
    weights, experts = topk_output.topk_weights.double(), topk_output.topk_ids.long()
    hidden = x.double()
    output = torch.zeros_like(hidden)
    for expert in experts.unique().tolist():
        rows, slot = (experts == expert).nonzero(as_tuple=True)
        gate, up = _linear(hidden[rows], layer.w13_weight[expert].double()).chunk(2, dim=-1)
        product = _linear(torch.nn.functional.silu(gate) * up, layer.w2_weight[expert].double())
        output.index_add_(0, rows, product * weights[rows, slot].unsqueeze(1))
    return output
