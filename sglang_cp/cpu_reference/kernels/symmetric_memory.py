"""Reference twins of torch's symmetric memory (`torch.distributed._symmetric_memory`): memory that other ranks map.

torch has it for GPUs. Here a tensor lies in an anonymous file, which the ranks of one host map into their own memory.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sglang_cp.ranks import exchange

_files: dict[int, int] = {}
"""Address of a tensor of this rank -> the descriptor of its file."""

_NAME = "sglang-cp-symmetric-memory-of-"


def peer_addresses() -> set[int]:
    """Where this rank sees other ranks' memory now: a file's name says whose it is."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if _NAME in line]
    others = (words[0] for words in lines if not words[5].endswith(f"{_NAME}{os.getpid()}"))
    return {int(span.partition("-")[0], 16) for span in others}


def empty(*size: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """`symmetric_memory.empty` on the CPU."""
    shape = tuple(size[0]) if len(size) == 1 and isinstance(size[0], Sequence) else size
    file = os.memfd_create(f"{_NAME}{os.getpid()}")
    os.ftruncate(file, math.prod(shape) * dtype.itemsize)
    tensor = _map(os.getpid(), file, shape, dtype)
    _files[tensor.data_ptr()] = file
    return tensor


def rendezvous(tensor: torch.Tensor, group: dist.ProcessGroup) -> Handle:
    """`symmetric_memory.rendezvous`: a collective of the group's ranks."""
    places = exchange(group, (os.getpid(), _files[tensor.data_ptr()]))
    rank = dist.get_rank(group)
    maps = [
        tensor if peer == rank else _map(process, file, tuple(tensor.shape), tensor.dtype)
        for peer, (process, file) in enumerate(places)
    ]
    dist.barrier(group)  # every rank has mapped the files: their descriptors may go
    os.close(_files.pop(tensor.data_ptr()))
    return Handle(maps, group)


class Handle:
    """What a rendezvous returns."""

    def __init__(self, maps: list[torch.Tensor], group: dist.ProcessGroup) -> None:
        self._maps = maps
        self._group = group

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        """Return when every rank has come here; what each wrote before is seen by all."""
        dist.barrier(self._group)

    def get_buffer(self, rank: int, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A rank's memory from its start."""
        num_bytes = math.prod(sizes) * dtype.itemsize
        return self._maps[rank].view(-1).view(torch.uint8)[:num_bytes].view(dtype).view(*sizes)


def _map(process: int, file: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    flat = torch.from_file(f"/proc/{process}/fd/{file}", shared=True, size=math.prod(shape), dtype=dtype)
    return flat.view(shape)
