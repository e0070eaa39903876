"""Whether the ranks can read each other's memory (torch's symmetric memory), with the same answer on every rank."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory

from sglang_cp.ranks import StepFailedError, exchange, together
from sglang_cp.weights.kind import SourceKind

_PROBE_BYTES = 1 << 20


def obstacle(kind: SourceKind, group: dist.ProcessGroup, device: torch.device) -> str | None:
    """Why the ranks cannot or, with ``auto``, should not have symmetric memory; None if they can.

    Args:
        kind: what was asked for.
        group: the TP group's ranks, on a backend for CPU tensors; each rank makes this call at the same point.
        device: of this rank, with its index.
    """
    if kind is SourceKind.AUTO and device.type == "cpu":
        return "torch has none for the CPU"
    places = exchange(group, (socket.gethostname(), device.index))
    if len({host for host, _ in places}) > 1:
        return "the ranks run on several hosts"
    try:
        together(group, lambda: _require_peer_access(device, [index for _, index in places]))
        _probe(group, device)
    except StepFailedError as error:
        return str(error)
    return None


def _require_peer_access(device: torch.device, indices: Sequence[int]) -> None:
    for index in indices:
        other = device.type == "cuda" and index != device.index
        if other and not torch.cuda.can_device_access_peer(device.index, index):
            raise RuntimeError(f"GPU {device.index} cannot read the memory of GPU {index}")


def _probe(group: dist.ProcessGroup, device: torch.device) -> None:
    """Let each rank read a little symmetric memory of every other; raises StepFailedError on all if one cannot."""

    def allocate() -> torch.Tensor:
        memory = symmetric_memory.empty(_PROBE_BYTES, dtype=torch.uint8, device=device)
        memory.fill_(dist.get_rank(group))
        torch.get_device_module(device).synchronize()
        return memory

    memory = together(group, allocate)
    handle = together(group, lambda: symmetric_memory.rendezvous(memory, group))

    def read() -> None:
        ranks = range(dist.get_world_size(group))
        seen = [int(handle.get_buffer(rank, (_PROBE_BYTES,), torch.uint8)[-1]) for rank in ranks]
        if seen != list(ranks):
            raise RuntimeError(f"peers' symmetric memory reads as {seen}")

    together(group, read)
