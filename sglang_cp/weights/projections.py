"""Projections over the shards of all ranks, each shard through the layer's own quantization method.

A gathered weight is a list of self-contained shards. So block scales, packed formats and pre-shuffled layouts need no
re-layout: what multiplies one rank's shard under plain TP multiplies every rank's shard here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


class _Projection:
    """A linear layer of upstream's with every rank's parameters in place of one rank's."""

    def __init__(self, linear: Any, gathered: Mapping[str, torch.Tensor]) -> None:
        """``gathered``: parameter name -> [size, *shape]."""
        if getattr(linear, "bias", None) is not None:
            raise ValueError("a sharded attention projection with a bias is not supported")
        self._linear = linear
        self._gathered = gathered

    def __getattr__(self, name: str) -> Any:
        return getattr(self._linear, name)

    @property
    def _size(self) -> int:
        return next(iter(self._gathered.values())).shape[0]

    @property
    def _contiguous(self) -> bool:
        """Whether the shards are plain matrices, so that one GEMM may span several of them."""
        return type(self._linear.quant_method).__name__ == "UnquantizedLinearMethod"

    def _apply(
        self, parameters: Mapping[str, torch.Tensor], x: torch.Tensor | tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        result: torch.Tensor = self._linear.quant_method.apply(_WithParameters(self._linear, parameters), x)
        return result

    def _shard(self, rank: int) -> dict[str, torch.Tensor]:
        return {name: tensor[rank] for name, tensor in self._gathered.items()}


class ColumnProjection(_Projection):
    """q_b_proj for all heads: [rows, in] -> [rows, size * out of one rank], heads in rank order."""

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        if self._contiguous:
            weight = self._gathered["weight"]
            return self._apply({"weight": weight.flatten(0, 1)}, x), None
        parts = [self._apply(self._shard(rank), x) for rank in range(self._size)]
        return torch.cat(parts, dim=-1), None


class RowProjection(_Projection):
    """o_proj over all heads: [rows, size * in of one rank] -> [rows, out], the sum over the shards.

    The terms are added in rank order, as plain TP's all-reduce adds them up to rounding. The result is complete: no
    all-reduce may follow.
    """

    def __call__(self, x: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, None]:
        """``x`` may be quantized already, values and scales: on ROCm upstream fuses that with what comes before."""
        parts = x if isinstance(x, tuple) else (x,)
        by_rank = zip(*(_slices(part, self._size) for part in parts), strict=True)
        output = None
        for rank, slices in enumerate(by_rank):
            term = self._apply(self._shard(rank), slices if isinstance(x, tuple) else slices[0])
            output = term if output is None else output.add_(term)
        assert output is not None
        return output, None


def _slices(x: torch.Tensor, size: int) -> list[torch.Tensor]:
    """[rows, size * k] -> each rank's [rows, k], dense in the order of dimensions that ``x`` has in memory.

    Some kernels want scales with rows innermost: a slice of such is dense already, and stays as it is.
    """
    return [part if part.t().is_contiguous() else part.contiguous() for part in x.chunk(size, dim=-1)]


class _WithParameters:
    """A linear layer as its quantization method sees it, with other parameter tensors."""

    def __init__(self, linear: Any, parameters: Mapping[str, torch.Tensor]) -> None:
        self._linear = linear
        for name, tensor in parameters.items():
            parameter = torch.nn.Parameter(tensor, requires_grad=False)
            # Loaders and quantization methods keep facts on the parameter (format_ue8m0, for one).
            parameter.__dict__.update(getattr(linear, name).__dict__)
            self.__dict__[name] = parameter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._linear, name)
