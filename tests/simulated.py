"""A process group of one process: what each rank put in is known, so collectives are arithmetic."""

import torch

from sglang_cp.rows import ProcessGroupRows


class SimulatedGroup:
    """Runs the ranks one after the other. ``others[r]`` is what rank r contributes to the collective at hand."""

    def __init__(self, rank, contributions):
        self.rank = rank
        self.contributions = contributions

    def all_gather_into_tensor(self, output, input):
        assert input.is_contiguous()
        assert torch.equal(input, self.contributions[self.rank])
        output.copy_(torch.cat(self.contributions))

    def reduce_scatter_tensor(self, output, input):
        assert input.is_contiguous()
        assert torch.equal(input, self.contributions[self.rank])
        output.copy_(sum(self.contributions).chunk(len(self.contributions))[self.rank])


def rows_of(rank, contributions=()):
    """The collectives of rank ``rank``, by a simulated group; see there for ``contributions``."""
    return ProcessGroupRows(SimulatedGroup(rank, contributions), len(contributions))
