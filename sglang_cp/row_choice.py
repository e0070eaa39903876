"""Chooses how the ranks exchange rows (``--cp-row-collectives``): what is faster on the ranks that will serve."""

from __future__ import annotations

import logging
import math
from functools import partial

import torch
import torch.distributed as dist

from sglang_cp import peer_memory
from sglang_cp.calibration.timing import LockstepTimer
from sglang_cp.ranks import StepFailedError, together
from sglang_cp.row_copies import SymmetricMemoryRows
from sglang_cp.rows import RowCollectives
from sglang_cp.weights.kind import SourceKind, resolve

logger = logging.getLogger(__name__)

FLAG = "--cp-row-collectives"
MEASURED_BYTES = (1 << 20, 32 << 20)
"""Of one rank's rows: about the index keys and the hidden states of a long extend."""
_WIDTH = 1024


class MeasuredRows:
    """Copies for rows of at least so many bytes a rank, a process group for fewer."""

    def __init__(
        self, small: RowCollectives, large: RowCollectives, size: int, *, gather_from: float, reduce_from: float
    ) -> None:
        """``gather_from``, ``reduce_from``: bytes of one rank's rows from which ``large`` is taken; may be infinite."""
        self._small, self._large, self._size = small, large, size
        self._gather_from, self._reduce_from = gather_from, reduce_from

    @property
    def name(self) -> str:
        return f"{self._large.name} or {self._small.name}"

    @property
    def num_bytes(self) -> int:
        return self._small.num_bytes + self._large.num_bytes

    def all_gather(self, local: torch.Tensor) -> torch.Tensor:
        return self._for(local.nbytes, self._gather_from).all_gather(local)

    def all_gather_dealt(self, local: torch.Tensor) -> torch.Tensor:
        return self._for(local.nbytes, self._gather_from).all_gather_dealt(local)

    def reduce_scatter(self, partial: torch.Tensor) -> torch.Tensor:
        return self._for(partial.nbytes // self._size, self._reduce_from).reduce_scatter(partial)

    def _for(self, num_bytes: int, large_from: float) -> RowCollectives:
        return self._large if num_bytes >= large_from else self._small


def row_copies(kind: SourceKind, group: dist.ProcessGroup, device: torch.device) -> SymmetricMemoryRows | None:
    """Staging memory for copies if ``kind`` may need it and every rank can have it; before the KV pool is sized.

    Args:
        kind: what was asked for.
        group: the TP group's ranks, on a backend for CPU tensors; each rank makes this call at the same point.
        device: of this rank, with its index.

    Raises:
        UsageError: for ``symmetric-memory`` where it cannot be had, on every rank.
    """
    if kind is SourceKind.PROCESS_GROUP:
        return None
    copies, obstacle = None, peer_memory.obstacle(kind, group, device)
    if obstacle is None:
        try:
            copies = SymmetricMemoryRows(group, device)
        except StepFailedError as error:
            obstacle = str(error)
    resolve(kind, obstacle, FLAG)
    return copies


def choose_rows(
    kind: SourceKind,
    by_group: RowCollectives,
    copies: RowCollectives | None,
    group: dist.ProcessGroup,
    device: torch.device,
) -> RowCollectives:
    """The collectives that ``kind`` names; ``auto`` takes what is measured to be faster.

    When all memory is taken: a process group's first collective takes some of its own, which plain TP's pool knows
    nothing of either.

    Args:
        kind: what was asked for.
        by_group: the TP group's own.
        copies: what :func:`row_copies` gave.
        group: the ranks, on a backend for CPU tensors; each makes this call at the same point.
        device: of this rank, with its index.

    Raises:
        UsageError: for ``symmetric-memory`` if copies give other rows than the group, on every rank.
    """
    if copies is None:
        return by_group
    obstacle = None
    try:
        together(group, partial(_require_same, by_group, copies, group, device))
    except StepFailedError as error:
        obstacle = str(error)
        logger.warning("CP: rows are exchanged by %s: %s.", by_group.name, obstacle)
    if resolve(kind, obstacle, FLAG) is SourceKind.PROCESS_GROUP:
        return by_group
    return copies if kind is SourceKind.SYMMETRIC_MEMORY else _faster(by_group, copies, group, device)


def large_from(seconds: dict[int, tuple[float, float]]) -> float:
    """From how many bytes on the second way was faster, infinity if never. ``seconds``: by bytes, of both ways."""
    found = math.inf
    for num_bytes, (small, large) in sorted(seconds.items(), reverse=True):
        if large >= small:
            break
        found = num_bytes
    return found


def _rows(num_bytes: int, device: torch.device, rank: int, ranks: int = 1) -> torch.Tensor:
    """[ranks * n, width], BF16, ``num_bytes`` a rank: small whole numbers, whose sums are exact in any order."""
    count = ranks * num_bytes // (2 * _WIDTH)
    return (torch.arange(count * _WIDTH, device=device) % 13 + rank).to(torch.bfloat16).view(count, _WIDTH)


def _require_same(
    first: RowCollectives, second: RowCollectives, group: dist.ProcessGroup, device: torch.device
) -> None:
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    differing = set()
    for num_bytes in MEASURED_BYTES:  # all of them: a rank that stops here would leave its peers in the next one
        for collective, ranks in (("all_gather", 1), ("reduce_scatter", size)):
            rows = _rows(num_bytes, device, rank, ranks)
            if not torch.equal(*(getattr(way, collective)(rows) for way in (first, second))):
                differing.add(collective)
    if differing:
        raise RuntimeError(f"{second.name} and {first.name} disagree in {' and '.join(sorted(differing))}")


def _faster(
    by_group: RowCollectives, copies: RowCollectives, group: dist.ProcessGroup, device: torch.device
) -> RowCollectives:
    timer = LockstepTimer(group, torch.get_device_module(device).synchronize)
    rank, size = dist.get_rank(group), dist.get_world_size(group)

    def measured(collective: str, ranks: int = 1) -> float:
        seconds = {}
        for num_bytes in MEASURED_BYTES:
            rows = _rows(num_bytes, device, rank, ranks)
            ways = [partial(getattr(way, collective), rows) for way in (by_group, copies)]
            seconds[num_bytes] = timer.seconds(ways[0]), timer.seconds(ways[1])
        if rank == 0:
            logger.info("CP: %s by %s and by %s: %s", collective, by_group.name, copies.name, times_text(seconds))
        return large_from(seconds)

    gather_from, reduce_from = measured("all_gather"), measured("reduce_scatter", size)
    if gather_from == reduce_from == math.inf:
        return by_group
    return MeasuredRows(by_group, copies, size, gather_from=gather_from, reduce_from=reduce_from)


def times_text(seconds: dict[int, tuple[float, float]]) -> str:
    """``1 MiB a rank in 0.020 and 0.030 ms, ...``."""
    return ", ".join(
        f"{num_bytes >> 20} MiB a rank in {1e3 * first:.3f} and {1e3 * second:.3f} ms"
        for num_bytes, (first, second) in seconds.items()
    )
