"""A process group of one process: what each rank put in is known, so collectives are arithmetic."""

import torch


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
