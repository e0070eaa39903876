"""Lightning-indexer scoring: the part of `deep_gemm` that upstream's indexer calls, under its names.

score[m, n] = sum over heads h of weights[m, h] * relu(q[m, h] . (k[n] * scale[n])), -inf outside a row's keys.
Products are accumulated in float64 and rounded once, so that a score does not depend on how a batch is blocked: ranks
that score the same row in different batches see the same number.
"""

from __future__ import annotations

import torch

from sglang_cp.cpu_reference.kernels import index_pages
from sglang_cp.cpu_reference.kernels.quant import FP8

_MAX_PRODUCTS = 1 << 20  # float64 products held at a time: 8 MiB stay in the cache


def get_num_sms() -> int:
    """Streaming multiprocessors: upstream only passes it on to the schedule below."""
    return 1


def get_paged_mqa_logits_metadata(context_lens: torch.Tensor, block_kv: int, num_sms: int) -> torch.Tensor:
    """The paged kernel's schedule; this kernel needs none."""
    return torch.zeros(num_sms + 1, 2, dtype=torch.int32)


def fp8_mqa_logits(
    q: torch.Tensor,
    kv: tuple[torch.Tensor, torch.Tensor],
    weights: torch.Tensor,
    cu_seq_len_k_start: torch.Tensor,
    cu_seq_len_k_end: torch.Tensor,
    clean_logits: bool = True,
    max_seqlen_k: int = 0,
) -> torch.Tensor:
    """Ragged scoring: float32 `[rows, keys]`.

    q `[rows, heads, 128]`; kv: keys `[keys, 128]` and scales `[keys]`; weights `[rows, heads]`; row m sees keys
    `start[m] <= n < end[m]`. In exact mode q is float32 and the keys are float32 in an FP8 view.
    """
    queries = _plain(q)
    keys = _dequantize(kv[0], kv[1], exact=queries.dtype == torch.float32)
    n_rows, n_keys = queries.shape[0], keys.shape[0]
    starts, ends = cu_seq_len_k_start.long(), cu_seq_len_k_end.long()
    logits = torch.full((n_rows, n_keys), float("-inf"))
    widest = int((ends - starts).max().clamp(min=1)) if n_rows else 1
    rows_at_a_time = max(1, _MAX_PRODUCTS // (queries.shape[1] * widest))
    for begin in range(0, n_rows, rows_at_a_time):
        rows = slice(begin, begin + rows_at_a_time)
        first, last = int(starts[rows].min()), int(ends[rows].max())
        if first >= last:
            continue
        # A batch holds the keys of all its requests: a block of rows is scored against those that one of its rows sees.
        seen = slice(first, last)
        logits[rows, seen] = _score(queries[rows].double(), keys[seen], _plain(weights)[rows].double()).float()
        column = torch.arange(first, last)
        outside = (column < starts[rows].unsqueeze(1)) | (column >= ends[rows].unsqueeze(1))
        logits[rows, seen].masked_fill_(outside, float("-inf"))
    return logits


def fp8_paged_mqa_logits(
    q: torch.Tensor,
    fused_kv_cache: torch.Tensor,
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    schedule_meta: torch.Tensor,
    max_context_len: int,
    clean_logits: bool = True,
) -> torch.Tensor:
    """Paged scoring: float32 `[batch * next_n, max_context_len]`.

    q `[batch, next_n, heads, 128]`; fused_kv_cache `[pages, 64, 1, 132]`; weights `[batch * next_n, heads]`;
    context_lens `[batch, next_n]`, or `[batch, 1]` for the last of next_n; block_table `[batch, pages of the longest]`.
    """
    queries = _plain(q)
    batch, next_n, _, _ = queries.shape
    stored_keys, stored_scales = index_pages.page_views(fused_kv_cache.flatten(1))
    logits = torch.full((batch * next_n, max_context_len), float("-inf"))
    row_lens = _row_lens(context_lens, next_n)
    row_weights = _plain(weights).double().reshape(batch, next_n, -1)
    for request in range(batch):
        length = int(row_lens[request].max())
        if length == 0:
            continue
        pages = block_table[request, : -(-length // index_pages.PAGE_SIZE)].long()
        keys = stored_keys[pages].double() * stored_scales[pages].double().unsqueeze(-1)
        scores = _score(queries[request].double(), keys.flatten(0, 1)[:length], row_weights[request])
        outside = torch.arange(length) >= row_lens[request].unsqueeze(1)
        rows = slice(request * next_n, (request + 1) * next_n)
        logits[rows, :length] = scores.float().masked_fill(outside, float("-inf"))
    return logits


def _score(queries: torch.Tensor, keys: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """`[rows, heads, d]`, `[keys, d]`, `[rows, heads]` to `[rows, keys]`, all float64."""
    rows, heads, _ = queries.shape
    products = (queries.flatten(0, 1) @ keys.T).relu_().reshape(rows, heads, keys.shape[0])
    return torch.bmm(weights.unsqueeze(1), products).squeeze(1)


def _dequantize(keys: torch.Tensor, scales: torch.Tensor, exact: bool) -> torch.Tensor:
    keys = keys.view(torch.float32) if exact and keys.dtype == FP8 else keys
    return keys.double() * scales.double().unsqueeze(-1)


def _row_lens(context_lens: torch.Tensor, next_n: int) -> torch.Tensor:
    """Context length of each row `[batch, next_n]`: the rows of a `[batch, 1]` length end one token apart."""
    if context_lens.shape[1] == next_n:
        return context_lens
    return context_lens + torch.arange(1 - next_n, 1)


def _plain(x: torch.Tensor) -> torch.Tensor:
    return x.as_subclass(torch.Tensor)
