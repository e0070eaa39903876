"""What the seams ask of one CP extend, one rank at a time."""

import pytest
import torch

from sglang_cp.extend import CPExtend
from sglang_cp.layout import TokenLayout
from tests.simulated import rows_of

SIZE, ROWS, HIDDEN = 4, 10, 6


def extend(rank, contributions=()):
    return CPExtend(TokenLayout(ROWS, SIZE, rank), rows_of(rank, contributions), placement=None)


@pytest.fixture
def complete():
    return torch.randn(ROWS, HIDDEN, generator=torch.Generator().manual_seed(0))


def test_rows_dealt_out_and_gathered_are_the_rows_again(complete):
    local = [extend(rank).shard_rows(complete) for rank in range(SIZE)]
    assert {part.shape for part in local} == {(3, HIDDEN)}
    for rank in range(SIZE):
        assert torch.equal(extend(rank, local).gather_rows(local[rank]), complete)


def test_strided_rows_are_gathered_as_dense_ones(complete):
    local = [extend(rank).shard_rows(complete) for rank in range(SIZE)]
    wide = [torch.cat([part, part], dim=1)[:, :HIDDEN] for part in local]
    assert not wide[0].is_contiguous()
    assert torch.equal(extend(1, local).gather_rows(wide[1]), complete)


def test_mlp_sees_every_row_once_and_returns_sums_to_their_owner(complete):
    def norm(hidden, residual):
        return hidden + residual, hidden + residual

    local = [extend(rank).shard_rows(complete) for rank in range(SIZE)]
    normed = [part + part for part in local]
    gathered = torch.cat(normed)
    for rank in range(SIZE):
        hidden, residual = extend(rank, normed).gather_for_mlp(local[rank].clone(), local[rank], norm)
        assert torch.equal(hidden, gathered)
        assert torch.equal(residual, normed[rank])
        partials = [gathered * (r + 1) for r in range(SIZE)]
        reduced = extend(rank, partials).reduce_from_mlp(partials[rank])
        torch.testing.assert_close(reduced, normed[rank] * 10)


def test_nan_of_a_padding_row_does_not_reach_the_mlp():
    rank = 3  # rows 3 and 7, and one row of padding
    attention_output = torch.ones(3, HIDDEN)
    attention_output[2] = float("nan")
    clean = torch.ones(3, HIDDEN)
    clean[2] = 0
    contributions = [torch.ones(3, HIDDEN)] * 3 + [clean]
    hidden, _ = extend(rank, contributions).gather_for_mlp(
        attention_output, torch.zeros(3, HIDDEN), lambda hidden, residual: (hidden, residual)
    )
    assert hidden.isfinite().all()


def test_metadata_covers_real_rows_only_and_pads_on_request():
    lens = torch.arange(1, ROWS + 1)
    own = extend(3).own_rows(lens)
    assert own.tolist() == [4, 8]
    assert extend(3).pad_rows(own).tolist() == [4, 8, 0]


def test_split_requests_gives_lists_and_tensors_that_agree():
    rows, rows_tensor, indices, indices_tensor = extend(2).split_requests([1, 1, 8], like=torch.zeros(3).long())
    assert rows == rows_tensor.tolist() == [2]
    assert indices == indices_tensor.tolist() == [2]
    assert rows_tensor.dtype == torch.int64
    assert indices_tensor.dtype == torch.int32
