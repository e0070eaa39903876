"""The token layout, one rank simulated at a time."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_cp.layout import TokenLayout

sizes = st.integers(1, 8)
lengths = st.lists(st.integers(0, 40), min_size=1, max_size=12)


@st.composite
def batches(draw):
    """(size, request lengths) with at least one row for each rank."""
    size = draw(sizes)
    lens = draw(lengths.filter(lambda lens: sum(lens) >= size))
    return size, lens


def every_rank(num_rows, size):
    return [TokenLayout(num_rows, size, rank) for rank in range(size)]


def numbered(num_rows):
    """Row i holds i + 1 in two columns, so that a zero can only be padding."""
    return torch.arange(1, num_rows + 1).repeat(2, 1).T.contiguous()


@given(batches())
def test_row_i_belongs_to_rank_i_mod_size(batch):
    size, lens = batch
    rows = numbered(sum(lens))
    for layout in every_rank(sum(lens), size):
        own = layout.own(rows)
        assert own.shape == (layout.local_rows, 2)
        assert ((own[:, 0] - 1) % size == layout.rank).all()
        assert own.is_contiguous()


@given(batches())
def test_every_row_is_owned_once(batch):
    size, lens = batch
    rows = numbered(sum(lens))
    owned = torch.cat([layout.own(rows)[:, 0] for layout in every_rank(sum(lens), size)])
    assert owned.sort().values.tolist() == rows[:, 0].tolist()


@given(batches(), st.data())
def test_a_place_is_found_on_its_owner_and_asks_the_same_of_every_rank(batch, data):
    size, lens = batch
    rows = numbered(sum(lens))
    places = torch.tensor(data.draw(st.lists(st.integers(-sum(lens), sum(lens) - 1), max_size=5)), dtype=torch.int64)
    layouts = every_rank(sum(lens), size)
    near = [layout.near(layout.pad(layout.own(rows)), places) for layout in layouts]
    for layout in layouts:
        assert torch.equal(layout.pick(torch.cat(near), places), rows[places])


@given(batches())
def test_ranks_pad_evenly_and_by_less_than_a_row(batch):
    size, lens = batch
    layouts = every_rank(sum(lens), size)
    assert len({layout.padded_rows for layout in layouts}) == 1
    assert {layout.padded_rows - layout.local_rows for layout in layouts} <= {0, 1}
    for layout in layouts:
        padded = layout.pad(layout.own(numbered(sum(lens))))
        assert (padded[layout.local_rows :] == 0).all()


@given(batches())
def test_split_requests_counts_the_rows_that_own_selects(batch):
    size, lens = batch
    request_of_row = torch.repeat_interleave(torch.arange(len(lens)), torch.tensor(lens))
    total = torch.zeros(len(lens), dtype=torch.long)
    for layout in every_rank(sum(lens), size):
        split = layout.split_requests(lens)
        assert all(count > 0 for count in split.rows)
        expected = torch.repeat_interleave(torch.tensor(split.indices), torch.tensor(split.rows))
        assert expected.tolist() == layout.own(request_of_row).tolist()
        for index, count in zip(split.indices, split.rows, strict=True):
            total[index] += count
    assert total.tolist() == lens


@pytest.mark.parametrize(
    ("lens", "rank", "indices", "rows"),
    [
        ([1, 1, 1, 1], 2, [2], [1]),  # requests shorter than size: some have no row on this rank
        ([5, 0, 7], 1, [0, 2], [1, 2]),  # an empty request between two others
        ([4, 1], 0, [0, 1], [1, 1]),  # a chunk tail of one token
        ([9], 0, [0], [3]),  # not divisible: this rank has one row more
        ([9], 3, [0], [2]),
    ],
)
def test_split_requests_by_hand(lens, rank, indices, rows):
    assert TokenLayout(sum(lens), 4, rank).split_requests(lens) == (indices, rows)


def test_fewer_rows_than_ranks_is_refused():
    with pytest.raises(ValueError, match="3 rows cannot be dealt to 4 ranks"):
        TokenLayout(3, 4, 0)


def test_rank_outside_the_group_is_refused():
    with pytest.raises(ValueError, match="rank 4 is outside the 4 ranks"):
        TokenLayout(8, 4, 4)


def test_wrong_row_counts_are_refused():
    layout = TokenLayout(9, 2, 0)
    with pytest.raises(ValueError, match="expected 9 rows"):
        layout.own(torch.zeros(8, 1))
    with pytest.raises(ValueError, match="expected 5 rows"):
        layout.near(torch.zeros(9, 1), torch.tensor([0]))
    with pytest.raises(ValueError, match="expected 2 rows"):
        layout.pick(torch.zeros(1, 1), torch.tensor([0]))
    with pytest.raises(ValueError, match="the requests hold 8 rows, the layout 9"):
        layout.split_requests([3, 5])
