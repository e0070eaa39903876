"""Twins of the Triton kernels that upstream launches with `kernel[grid](...)`."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_cp.cpu_reference.kernels import launch

PAGE = 4


class Request:
    """A request's slots, one a token, as an allocator that thinks in pages must hand them out."""

    def __init__(self, prefix_pages: list[int], prefix: int) -> None:
        self.slots = [prefix_pages[i // PAGE] * PAGE + i % PAGE for i in range(prefix)]

    def extend(self, length: int, free_pages: list[int]) -> list[int]:
        new = []
        for position in range(len(self.slots), length):
            first = position % PAGE == 0
            slot = free_pages.pop(0) * PAGE if first else self.slots[-1] + 1
            self.slots.append(slot)
            new.append(slot)
        return new


requests = st.lists(st.tuples(st.integers(0, 10), st.integers(1, 11)), min_size=1, max_size=5)


def batch(lengths: list[tuple[int, int]]) -> tuple[list[Request], torch.Tensor, torch.Tensor, torch.Tensor]:
    """Requests with a prefix, their prefix and total lengths, and the last slot of each prefix (-1 without one)."""
    reqs = [Request([100 + 10 * i, 101 + 10 * i, 102 + 10 * i], prefix) for i, (prefix, _) in enumerate(lengths)]
    prefix = torch.tensor([prefix for prefix, _ in lengths])
    total = torch.tensor([prefix + extend for prefix, extend in lengths])
    return reqs, prefix, total, torch.tensor([req.slots[-1] if req.slots else -1 for req in reqs])


@settings(max_examples=80)
@given(requests)
def test_extending_fills_the_old_page_then_takes_new_ones_in_order(lengths: list[tuple[int, int]]) -> None:
    reqs, prefix, total, last = batch(lengths)
    free = list(range(50, 80))
    expected = (
        [slot for req, length in zip(reqs, total.tolist(), strict=True) for slot in req.extend(length, pool)]
        if (pool := free.copy())
        else []
    )
    out = torch.full((len(expected),), -7)
    launch.Launch(launch.alloc_extend)[(len(lengths),)](prefix, total, last, torch.tensor(free), out, 8, PAGE)
    assert out.tolist() == expected


@settings(max_examples=80)
@given(requests)
def test_decoding_takes_one_slot_a_request(lengths: list[tuple[int, int]]) -> None:
    reqs, prefix, _, last = batch([(prefix + 1, 1) for prefix, _ in lengths])
    free = list(range(50, 60))
    pool = free.copy()
    expected = [req.extend(len(req.slots) + 1, pool)[0] for req in reqs]
    out = torch.full((len(reqs),), -7)
    launch.alloc_decode(prefix + 1, last, torch.tensor(free), out, 8, PAGE)
    assert out.tolist() == expected


def test_too_few_pages_leave_the_output_alone() -> None:
    """Upstream's allocator launches first and refuses the batch afterwards."""
    out = torch.full((9,), -7)
    launch.alloc_extend(torch.tensor([0]), torch.tensor([9]), torch.tensor([-1]), torch.tensor([5, 6]), out, 1, PAGE)
    assert (out == -7).all()
    launch.alloc_decode(torch.tensor([5]), torch.tensor([3]), torch.tensor([], dtype=torch.int64), out[:1], 1, PAGE)
    assert (out == -7).all()


def test_extending_within_the_old_page_needs_no_free_page() -> None:
    out = torch.empty(2, dtype=torch.int64)
    empty = torch.tensor([], dtype=torch.int64)
    launch.alloc_extend(torch.tensor([5]), torch.tensor([7]), torch.tensor([41]), empty, out, 1, PAGE)
    assert out.tolist() == [42, 43]


@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=6), cp_size=st.integers(1, 8), data=st.data())
def test_rows_of_a_rank_are_those_dealt_to_it(lengths: list[int], cp_size: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, cp_size - 1))
    request_of_row = [request for request, length in enumerate(lengths) for _ in range(length)]
    mine = request_of_row[rank::cp_size]
    expected = {request: mine.count(request) for request in sorted(set(mine))}
    out, selected = torch.full((len(expected),), -7), torch.full((len(expected),), -7)
    launch.round_robin_split_q_seqs(torch.tensor(lengths), out, selected, len(lengths), cp_size, rank)
    assert dict(zip(selected.tolist(), out.tolist(), strict=True)) == expected
    assert selected.tolist() == sorted(expected)


def test_latents_land_in_their_slots() -> None:
    pool = torch.zeros(10, 1, 576)
    nope, rope = torch.randn(3, 1, 512), torch.randn(3, 1, 64)
    launch.set_mla_kv_buffer_triton(pool, torch.tensor([7, 2, 9]), nope, rope)
    assert torch.equal(pool[[7, 2, 9], :, :512], nope)
    assert torch.equal(pool[[7, 2, 9], :, 512:], rope)
    assert not pool[[0, 1, 3, 4, 5, 6, 8]].any()
