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

ABSORBED = ("w_kc", "w_vc", "w_scale_k", "w_scale_v", "w_scale")
"""Sharded attributes that upstream makes from kv_b_proj after loading; those that a format has are tensors."""


@dataclass(frozen=True)
class Shard:
    """One rank's slice of one sharded tensor.

    Attributes:
        name: ``q_b_proj.weight``, ``w_kc``, ...
        tensor: the slice as upstream holds it, with any strides: transposed, or padded for a kernel.
    """

    name: str
    tensor: torch.Tensor

    @property
    def span(self) -> int:
        """Elements from the tensor's first to its last in memory."""
        return 1 + sum(
            (size - 1) * stride for size, stride in zip(self.tensor.shape, self.tensor.stride(), strict=True)
        )

    @property
    def num_bytes(self) -> int:
        return self.span * self.tensor.element_size()

    @property
    def layout(self) -> tuple[object, ...]:
        """Equal for shards that take the same place in a buffer and are seen there in the same way."""
        return self.name, self.tensor.dtype, self.tensor.shape, self.tensor.stride()

    def bytes(self) -> torch.Tensor:
        """[num_bytes], uint8: the slice as it lies in memory, a view. Bytes, because a backend need not know FP8."""
        return self.tensor.as_strided((self.span,), (1,)).view(torch.uint8)

    def in_bytes(self, memory: torch.Tensor) -> torch.Tensor:
        """[num_bytes], uint8 -> a view of it with this tensor's dtype, shape and strides."""
        return memory.view(self.tensor.dtype).as_strided(self.tensor.shape, self.tensor.stride())

    def by_rank(self, gathered: torch.Tensor) -> torch.Tensor:
        """[size, num_bytes], uint8 -> [size, *shape], a view: each rank's slice with dtype and strides as held."""
        flat = gathered.view(self.tensor.dtype)
        return flat.as_strided((flat.shape[0], *self.tensor.shape), (self.span, *self.tensor.stride()))


def layer_shards(attention: Any) -> list[Shard]:
    """The shards of one attention layer, in an order that is the same on every rank.

    Read anew for each pull, because a weight update may put other tensors in their place.
    """
    shards = [
        Shard(f"{module}.{name}", parameter.detach())
        for module in LINEARS
        for name, parameter in getattr(attention, module).named_parameters(recurse=False)
    ]
    shards += [
        Shard(name, tensor) for name in ABSORBED if isinstance(tensor := getattr(attention, name, None), torch.Tensor)
    ]
    return shards


def replace_shard(attention: Any, shard: Shard, tensor: torch.Tensor) -> None:
    """Let upstream's layer hold ``tensor`` in place of ``shard``; a parameter stays the same object."""
    module, _, name = shard.name.rpartition(".")
    if module:
        getattr(getattr(attention, module), name).data = tensor
    else:
        setattr(attention, name, tensor)
