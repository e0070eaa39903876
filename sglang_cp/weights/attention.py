"""An attention layer with all heads, beside upstream's layer with one rank's heads."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from sglang_cp.weights.absorbed import absorbed_of_all_heads
from sglang_cp.weights.pipeline import GatheredWeights
from sglang_cp.weights.projections import ColumnProjection, RowProjection


def with_all_heads(attention: Any, size: int, take: Callable[[], GatheredWeights]) -> Any:
    """Upstream's attention layer as it would be without tensor parallelism, for one CP extend at a time.

    The result is a subclass of the layer's own class, so upstream's forward code runs unchanged; it shares everything
    with ``attention`` but what depends on the number of heads. ``attention`` itself is not touched, and decode keeps
    using it.

    Args:
        attention: an upstream DeepseekV2AttentionMLA, weights loaded.
        size: ranks its heads are sharded over.
        take: gives the layer's gathered weights, called once at the start of each forward.
    """
    upstream = type(attention)
    name = f"AllHeads{upstream.__name__}"
    cls = type(name, (_AllHeads, upstream), {"__module__": __name__})
    return cls(attention, size, take)


class _AllHeads:
    _base: Any

    def __init__(self, base: Any, size: int, take: Callable[[], GatheredWeights]) -> None:
        # Not upstream's __init__: that would create weights. What is not set here is looked up in the base.
        self._base = base
        self._take = take
        self.cp_size = size
        self.num_local_heads = base.num_heads
        self.attn_mqa = copy.copy(base.attn_mqa)
        self.attn_mqa.tp_q_head_num = base.num_heads

    # torch.nn.Module would register modules and parameters; these are borrowed, not owned.
    __setattr__ = object.__setattr__
    __delattr__ = object.__delattr__

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_base"], name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        weights = self._of_all_heads(self._take())
        vars(self).update(weights)
        try:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        finally:
            for name in weights:  # nothing but the two buffers is held between layers
                delattr(self, name)

    def _of_all_heads(self, weights: GatheredWeights) -> dict[str, Any]:
        base = self._base
        return {
            "q_b_proj": ColumnProjection(base.q_b_proj, _parameters_of("q_b_proj", weights)),
            "o_proj": RowProjection(base.o_proj, _parameters_of("o_proj", weights)),
            **absorbed_of_all_heads(weights),
        }


def _parameters_of(module: str, weights: GatheredWeights) -> dict[str, torch.Tensor]:
    prefix = module + "."
    return {name[len(prefix) :]: tensor for name, tensor in weights.items() if name.startswith(prefix)}
