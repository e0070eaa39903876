"""Chooses where shards come from (``--cp-shard-source``), with the same answer on every rank."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory

from sglang_cp.ranks import StepFailedError, exchange, together
from sglang_cp.weights.kind import SourceKind, resolve
from sglang_cp.weights.source import ProcessGroupSource, ShardSource
from sglang_cp.weights.symmetric_memory import SymmetricMemorySource

logger = logging.getLogger(__name__)

_PROBE_BYTES = 1 << 20


def make_source(
    kind: SourceKind, layers: Sequence[Any], group: dist.ProcessGroup, device: torch.device, *, memory_saver: bool
) -> ShardSource:
    """Build the source that ``kind`` names; ``auto`` takes symmetric memory wherever every rank can have it.

    Args:
        kind: what was asked for.
        layers: upstream's attention modules in forward order.
        group: the TP group's ranks, on a backend for CPU tensors; each rank makes this call at the same point.
        device: of the weights, with its index.
        memory_saver: whether ``--enable-memory-saver`` owns the weights' memory.

    Raises:
        UsageError: for ``symmetric-memory`` where it cannot be had, on every rank.
    """
    obstacle = None if kind is SourceKind.PROCESS_GROUP else _obstacle(kind, group, device, memory_saver)
    if resolve(kind, obstacle) is SourceKind.SYMMETRIC_MEMORY:
        return SymmetricMemorySource(layers, group, device)
    if obstacle:
        logger.info("CP: no symmetric memory for the shards: %s.", obstacle)
    return ProcessGroupSource(dist.get_process_group_ranks(group))


def _obstacle(kind: SourceKind, group: dist.ProcessGroup, device: torch.device, memory_saver: bool) -> str | None:
    """Why the ranks cannot have symmetric memory, None if they can: the same answer on each."""
    if memory_saver:
        return "--enable-memory-saver must be able to free the weights, and cannot free symmetric memory"
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
