"""The process group's row collectives, one rank at a time."""

import torch

from tests.simulated import rows_of

SIZE, ROWS = 3, 4
MINE = [torch.arange(ROWS * 2).view(ROWS, 2) + 100 * rank for rank in range(SIZE)]


def test_rank_order_is_rank_after_rank():
    assert torch.equal(rows_of(1, MINE).all_gather(MINE[1]), torch.cat(MINE))


def test_token_order_is_row_after_row_of_every_rank():
    dealt = rows_of(2, MINE).all_gather_dealt(MINE[2])
    assert dealt.tolist() == [MINE[place % SIZE][place // SIZE].tolist() for place in range(SIZE * ROWS)]
    assert dealt.is_contiguous()


def test_sums_go_to_their_rows_owner():
    partial = [torch.arange(SIZE * ROWS * 2).view(-1, 2) * 10**rank for rank in range(SIZE)]
    assert torch.equal(rows_of(1, partial).reduce_scatter(partial[1]), partial[0][ROWS : 2 * ROWS] * 111)


def test_strided_rows_are_sent_dense():
    wide = torch.cat([MINE[0], MINE[0]], dim=1)[:, :2]
    assert not wide.is_contiguous()
    assert torch.equal(rows_of(0, MINE).all_gather(wide), torch.cat(MINE))
    partial = torch.cat(MINE)
    strided = torch.cat([partial, partial], dim=1)[:, :2]
    assert torch.equal(rows_of(0, [partial] * SIZE).reduce_scatter(strided), partial[:ROWS] * SIZE)
