"""Row collectives by copies between real processes: ``python -m tests.row_copies [cpu|cuda] [ranks]``.

See tests/processes.py for the devices. With a GPU for each rank it also says how long copies and NCCL take. Prints
``passed`` at the end.
"""

import logging
import sys

import pytest
import torch
import torch.distributed as dist

from sglang_cp import row_choice
from sglang_cp.errors import UsageError
from sglang_cp.row_choice import MeasuredRows, choose_rows, row_copies
from sglang_cp.row_copies import SymmetricMemoryRows
from sglang_cp.rows import ProcessGroupRows
from sglang_cp.weights.kind import SourceKind
from tests.processes import on_ranks

HALF_BYTES = 1 << 12
LENGTHS = (1, 2, 7, 64, 100)
"""Rows of a rank; the longest take many rounds of a half."""


def main():
    device, size = [*sys.argv[1:], "cpu", "2"][:2] if len(sys.argv) != 2 else [sys.argv[1], "2"]
    on_ranks(int(size), device, run)
    print("passed")


def run(rank, group, device):
    size = dist.get_world_size(group)
    copies = SymmetricMemoryRows(group, device, HALF_BYTES)
    assert copies.num_bytes == 2 * HALF_BYTES
    # In one sequence, without a pause: what one collective stages the next may not spoil.
    for turn in range(3):
        for rows in LENGTHS:
            for dtype in (torch.bfloat16, torch.float32, torch.uint8):
                gathers(copies, rank, size, rows, dtype, device, turn)
            for dtype in (torch.bfloat16, torch.float32):
                reduces(copies, rank, size, rows, dtype, device, turn)
    with pytest.raises(ValueError, match="does not fit"):
        copies.all_gather(torch.zeros(1, HALF_BYTES + 1, dtype=torch.uint8, device=device))
    chooses(rank, group, device)


def rows_of(rank, rows, dtype, device, turn, width=33):
    """Whole numbers, exact in BF16 and in sums; strided, as a slice of a wider tensor."""
    numbers = torch.arange(rows * width, device=device).view(rows, width) * 7 + 5 * rank + turn
    wide = torch.cat([numbers, numbers], dim=1) % 61
    return wide.to(dtype)[:, :width]


def gathers(copies, rank, size, rows, dtype, device, turn):
    every = torch.stack([rows_of(peer, rows, dtype, device, turn) for peer in range(size)])
    assert torch.equal(copies.all_gather(every[rank]), every.flatten(0, 1))
    local = rows_of(rank, rows, dtype, device, turn)
    assert not local.is_contiguous() or rows == 1
    assert torch.equal(copies.all_gather_dealt(local), every.transpose(0, 1).flatten(0, 1))


def reduces(copies, rank, size, rows, dtype, device, turn):
    partial = [rows_of(peer, size * rows, dtype, device, turn) for peer in range(size)]
    whole = torch.stack(partial).float().sum(0).to(dtype)
    assert torch.equal(copies.reduce_scatter(partial[rank]), whole[rank * rows : (rank + 1) * rows])


def chooses(rank, group, device):
    """Copies are checked against the process group and timed; on GPUs with the sizes, and the log, of a server."""
    size, on_cpu = dist.get_world_size(group), device.type == "cpu"
    if not on_cpu and torch.cuda.device_count() < size:
        return  # NCCL wants a GPU a rank
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    by_group = ProcessGroupRows(_Group(group if on_cpu else dist.new_group(list(range(size)), backend="nccl")), size)

    def chosen(kind):
        return choose_rows(kind, by_group, row_copies(kind, group, device), group, device)

    assert chosen(SourceKind.PROCESS_GROUP) is by_group
    if on_cpu:
        assert chosen(SourceKind.AUTO) is by_group
        row_choice.MEASURED_BYTES = (1 << 12, 1 << 16)
    copies = chosen(SourceKind.SYMMETRIC_MEMORY)
    assert isinstance(copies, SymmetricMemoryRows)
    fastest = row_choice._faster(by_group, copies, group, device)
    assert fastest is by_group or isinstance(fastest, MeasuredRows)
    everyones = [None] * size
    dist.all_gather_object(everyones, vars(fastest).get("_gather_from"), group=group)
    assert len(set(everyones)) == 1  # the ranks decide alike
    original = SymmetricMemoryRows.reduce_scatter
    if rank == 1:
        SymmetricMemoryRows.reduce_scatter = lambda rows, partial: original(rows, partial) + 1
    with pytest.raises(UsageError, match=r"--cp-row-collectives symmetric-memory is impossible here: .* disagree"):
        chosen(SourceKind.SYMMETRIC_MEMORY)
    assert choose_rows(SourceKind.AUTO, by_group, copies, group, device) is by_group
    SymmetricMemoryRows.reduce_scatter = original


class _Group:
    """A process group in the shape of SGLang's GroupCoordinator."""

    def __init__(self, group):
        self._group = group

    def all_gather_into_tensor(self, output, input):
        dist.all_gather_into_tensor(output, input, group=self._group)

    def reduce_scatter_tensor(self, output, input):
        whole = input.clone()
        dist.all_reduce(whole, group=self._group)
        output.copy_(whole.chunk(dist.get_world_size(self._group))[dist.get_rank(self._group)])


if __name__ == "__main__":
    main()
