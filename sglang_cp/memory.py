"""What a rank's memory holds: weights, and the buffers that CP adds."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from sglang_cp.weights.shards import ABSORBED


def weight_bytes(model: torch.nn.Module, *, beside: torch.nn.Module | None = None) -> int:
    """Bytes of a loaded model's parameters, buffers and absorbed kv_b_proj tensors on this rank, each counted once.

    Args:
        beside: another model on this rank, whose tensors are left out: a draft model shares some with its target.
    """
    shared = {tensor.data_ptr() for tensor in _tensors(beside)} if beside is not None else set()
    sizes = {tensor.data_ptr(): tensor.nbytes for tensor in _tensors(model)}
    return sum(size for address, size in sizes.items() if address not in shared)


def _tensors(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    yield from model.parameters()
    yield from model.buffers()
    for module in model.modules():
        for name in ABSORBED:
            if isinstance(tensor := getattr(module, name, None), torch.Tensor):
                yield tensor
