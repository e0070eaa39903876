"""Top-k over index scores, plain and fused with the page-table lookup (`sgl_kernel` and JIT top-k, under their names).

The chosen columns come in ascending order, and of equal scores the lowest column wins: two ranks with the same scores
choose the same keys and sum them in the same order.
"""

from __future__ import annotations

import torch


def select(score: torch.Tensor, starts: torch.Tensor, lengths: torch.Tensor, topk: int) -> torch.Tensor:
    """Columns, relative to a row's start, of its `topk` largest scores: int32 `[rows, topk]`, padded with -1.

    score `[rows, columns]`; row i offers the columns `starts[i] <= c < starts[i] + lengths[i]`, all of them when they
    are at most `topk`.
    """
    rows, columns = score.shape
    chosen = torch.full((rows, topk), -1, dtype=torch.int32)
    if rows == 0 or columns == 0:
        return chosen
    column = torch.arange(columns)
    starts, lengths = starts.reshape(-1, 1), lengths.reshape(-1, 1)
    offered = (column >= starts) & (column < starts + lengths)
    masked = score.masked_fill(~offered, float("-inf"))
    threshold = masked.topk(min(topk, columns), dim=1).values[:, -1:]
    taken = (masked >= threshold) & offered
    tied = (taken.sum(1) > topk).nonzero().squeeze(1)  # rows whose last places several equal scores compete for
    above, equal = masked[tied] > threshold[tied], (masked[tied] == threshold[tied]) & offered[tied]
    taken[tied] = above | (equal & (equal.cumsum(1) <= topk - above.sum(1, keepdim=True)))
    row, selected = taken.nonzero(as_tuple=True)
    counts = taken.sum(1)
    place = torch.arange(row.numel()) - (counts.cumsum(0) - counts)[row]
    chosen[row, place] = (selected - starts.squeeze(1)[row]).to(torch.int32)
    return chosen


def fast_topk_v2(
    score: torch.Tensor, lengths: torch.Tensor, topk: int, row_starts: torch.Tensor | None = None
) -> torch.Tensor:
    """Columns relative to `row_starts` (or absolute): int32 `[rows, topk]`, padded with -1."""
    starts = torch.zeros_like(lengths) if row_starts is None else row_starts
    return select(score, starts, lengths, topk)


def fast_topk_transform_fused(
    score: torch.Tensor,
    lengths: torch.Tensor,
    page_table_size_1: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    topk: int,
    row_starts: torch.Tensor | None = None,
) -> torch.Tensor:
    """Token slots of the chosen keys: int32 `[rows, topk]`, padded with -1.

    page_table_size_1 `[requests, max length]` holds a slot a token; cu_seqlens_q `[requests + 1]` says whose a row is.
    """
    local = fast_topk_v2(score, lengths, topk, row_starts)
    request = torch.searchsorted(cu_seqlens_q.long(), torch.arange(score.shape[0]), right=True) - 1
    return _look_up(page_table_size_1, request, local)


def fast_topk_transform_ragged_fused(
    score: torch.Tensor,
    lengths: torch.Tensor,
    topk_indices_offset: torch.Tensor,
    topk: int,
    row_starts: torch.Tensor | None = None,
) -> torch.Tensor:
    """Positions of the chosen keys in the flattened batch: int32 `[rows, topk]`, padded with -1."""
    local = fast_topk_v2(score, lengths, topk, row_starts)
    return torch.where(local >= 0, local + topk_indices_offset.reshape(-1, 1), local).to(torch.int32)


def plan_topk_v2(seq_lens: torch.Tensor, static_threshold: int = 0) -> torch.Tensor:
    """The JIT top-k's work plan; this kernel needs none, upstream checks its `rows + 1` rows."""
    return seq_lens.new_zeros(seq_lens.shape[0] + 1, 1)


def topk_transform_512_v2(
    scores: torch.Tensor,
    seq_lens: torch.Tensor,
    page_tables: torch.Tensor,
    out_page_indices: torch.Tensor,
    page_size: int,
    metadata: torch.Tensor,
    out_raw_indices: torch.Tensor | None = None,
) -> None:
    """Write the chosen keys' token slots into `out_page_indices` `[rows, topk]`.

    page_tables `[rows, pages]` holds a page of `page_size` tokens an entry.
    """
    local = fast_topk_v2(scores, seq_lens, out_page_indices.shape[1])
    pages = _look_up(page_tables, torch.arange(scores.shape[0]), torch.where(local >= 0, local // page_size, local))
    out_page_indices.copy_(torch.where(local >= 0, pages * page_size + local % page_size, local))
    if out_raw_indices is not None:
        out_raw_indices.copy_(local)


def _look_up(table: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """`table[row[i], column[i, j]]`, -1 where the column is -1."""
    found = table[row.unsqueeze(1), column.clamp_min(0).long()]
    return torch.where(column >= 0, found, -1).to(torch.int32)
