"""Chooses where shards come from (``--cp-shard-source``), with the same answer on every rank."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from sglang_cp import peer_memory
from sglang_cp.weights.kind import SourceKind, resolve
from sglang_cp.weights.source import ProcessGroupSource, ShardSource
from sglang_cp.weights.symmetric_memory import SymmetricMemorySource

logger = logging.getLogger(__name__)


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
    """Why the shards cannot be in symmetric memory, None if they can: the same answer on each rank."""
    if memory_saver:
        return "--enable-memory-saver must be able to free the weights, and cannot free symmetric memory"
    return peer_memory.obstacle(kind, group, device)
