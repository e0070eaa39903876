"""Which tensors of a DSA attention layer tensor parallelism shards by heads, and how their bytes lie.

Upstream (models/deepseek_v2.py) shards q_b_proj (columns), o_proj (rows) and the absorbed kv_b_proj (w_kc, w_vc, by
heads), each with its scales. Everything else of the layer is complete on every rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

LINEARS = ("q_b_proj", "o_proj")
"""Sharded linear modules; all their parameters (weight and scales) are shards."""

ABSORBED = ("w_kc", "w_vc", "w_scale_k", "w_scale_v")
"""Sharded attributes that upstream makes from kv_b_proj after loading: tensors, or None where a format has none."""


@dataclass(frozen=True)
class Shard:
    """One rank's slice of one sharded tensor.

    Attributes:
        name: ``q_b_proj.weight``, ``w_kc``, ...
        dense: the slice, contiguous.
        swapped: upstream holds it with the last two dimensions swapped.
    """

    name: str
    dense: torch.Tensor
    swapped: bool

    @property
    def num_bytes(self) -> int:
        return self.dense.numel() * self.dense.element_size()

    def as_held(self, gathered: torch.Tensor) -> torch.Tensor:
        """[size, *dense.shape] -> the same with upstream's order of dimensions, a view."""
        return gathered.transpose(-1, -2) if self.swapped else gathered


def layer_shards(attention: Any) -> list[Shard]:
    """The shards of one attention layer, in an order that is the same on every rank.

    Read anew for each pull, because a weight update may put other tensors in their place.
    """
    shards = [
        _shard(f"{module}.{name}", parameter)
        for module in LINEARS
        for name, parameter in getattr(attention, module).named_parameters(recurse=False)
    ]
    for name in ABSORBED:
        tensor = getattr(attention, name, None)
        if tensor is not None:
            shards.append(_shard(name, tensor))
    return shards


def _shard(name: str, tensor: torch.Tensor) -> Shard:
    tensor = tensor.detach()
    if tensor.is_contiguous():
        return Shard(name, tensor, swapped=False)
    if tensor.dim() >= 2 and tensor.transpose(-1, -2).is_contiguous():
        return Shard(name, tensor.transpose(-1, -2), swapped=True)
    raise ValueError(
        f"{name} of shape {tuple(tensor.shape)} and strides {tensor.stride()} is neither contiguous nor transposed: "
        "its bytes cannot be gathered as they lie"
    )
