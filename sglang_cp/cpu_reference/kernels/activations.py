"""Activations that do not depend on where an element lies in its tensor.

Torch computes the end of a float32 tensor element by element, and the rest in vectors; the two round differently for
4 % of all values. So a row's router scores and activations would depend on its company. In float64 they differ too, but
no longer once rounded to float32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

_silu = torch.nn.functional.silu


def _through_float64(function: Callable[[torch.Tensor], torch.Tensor], input: torch.Tensor) -> torch.Tensor:
    return function(input.double()).to(input.dtype) if input.dtype.is_floating_point else function(input)


def sigmoid(input: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """`torch.sigmoid`: the router's scores."""
    result = _through_float64(torch.special.expit, input)
    return result if out is None else out.copy_(result)


def silu(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    """`torch.nn.functional.silu`: the dense layers' and shared experts' gate."""
    result = _through_float64(_silu, input)
    return input.copy_(result) if inplace else result
