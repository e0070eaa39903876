"""What a rank's memory holds: weights, and the buffers that CP adds."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from sglang_cp.weights.shards import ABSORBED


def weight_bytes(model: torch.nn.Module) -> int:
    """Bytes of a loaded model's parameters, buffers and absorbed kv_b_proj tensors on this rank, each counted once."""
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in _tensors(model)}.values())


def _tensors(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    yield from model.parameters()
    yield from model.buffers()
    for module in model.modules():
        for name in ABSORBED:
            if isinstance(tensor := getattr(module, name, None), torch.Tensor):
                yield tensor
