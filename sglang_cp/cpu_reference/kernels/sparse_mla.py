"""Sparse multi-head latent attention (twin of `sgl_kernel.flash_mla.flash_mla_sparse_fwd`)."""

from __future__ import annotations

import math

import torch

_MAX_GATHERED_ELEMENTS = 1 << 19  # latents gathered at a time: a few megabytes stay in the cache


def flash_mla_sparse_fwd(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    d_v: int = 512,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention of every row over its own chosen latents, computed in float64.

    q `[rows, heads, 576]`; kv `[slots, 1, 576]`, whose first `d_v` values are the value vector too; indices
    `[rows, 1, topk]`, invalid where -1 or >= slots. Returns the output `[rows, heads, d_v]` in q's dtype, the largest
    logit and the base-2 log-sum-exp, both float32 `[rows, heads]`. A row without a valid index gives zeros, -inf, -inf.
    Raises NotImplementedError for sinks and per-row lengths, which DSA does not use.
    """
    if attn_sink is not None or topk_length is not None:
        raise NotImplementedError("The CPU reference of sparse MLA has no attention sinks and no per-row lengths.")
    rows, heads, width = q.shape
    latents, chosen = kv.flatten(1), indices.squeeze(1)
    out = torch.empty(rows, heads, d_v, dtype=q.dtype)  # every head is written: live or idle
    max_logits = torch.full((rows, heads), -math.inf)
    lse = torch.full((rows, heads), -math.inf)
    # Upstream pads the heads to 64 with zero queries: they attend uniformly, so one of them stands for all.
    has_query = q.any(dim=2).any(dim=0)
    live, idle = has_query.nonzero().squeeze(1), has_query.logical_not().nonzero().squeeze(1)
    computed = torch.cat([live, idle[:1]])
    rows_at_a_time = max(1, _MAX_GATHERED_ELEMENTS // max(1, chosen.shape[1] * width))
    keys = torch.empty(min(rows_at_a_time, rows), chosen.shape[1], width, dtype=torch.float64)
    for begin in range(0, rows, rows_at_a_time):
        part = slice(begin, begin + rows_at_a_time)
        valid = _gather(latents, chosen[part], keys)
        queries = q[part].index_select(1, computed).double()
        part_out, part_max, part_lse = _attend(queries, keys[: valid.shape[0]], valid, sm_scale, d_v)
        for target, source in ((out, part_out), (max_logits, part_max), (lse, part_lse)):
            target[part, live] = source[:, : live.numel()].to(target.dtype)
            if idle.numel():
                target[part, idle] = source[:, -1:].to(target.dtype)
    return out, max_logits, lse


def _gather(latents: torch.Tensor, chosen: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Copy each row's chosen latents to the front of `keys` `[>= rows, topk, width]`; returns which are valid.

    An invalid index takes a valid one's place in its row: its weight will be zero, and a stale NaN in some unused slot
    would leak through a zero weight.
    """
    valid = (chosen >= 0) & (chosen < latents.shape[0])
    one_valid = chosen.gather(1, valid.int().argmax(1, keepdim=True))
    slots = torch.where(valid, chosen, one_valid).clamp(0, latents.shape[0] - 1)
    keys[: chosen.shape[0]].flatten(0, 1).copy_(latents.index_select(0, slots.flatten()))
    return valid


def _attend(
    q: torch.Tensor, keys: torch.Tensor, valid: torch.Tensor, sm_scale: float, d_v: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q `[rows, heads, width]`, keys `[rows, topk, width]`, both float64; valid `[rows, topk]`."""
    logits = torch.bmm(q, keys.transpose(1, 2)) * sm_scale
    logits = logits.masked_fill(~valid.unsqueeze(1), -math.inf)
    largest = logits.amax(-1)
    weights = torch.exp(logits - largest.nan_to_num(neginf=0.0).unsqueeze(-1))  # all zero in a row without a key
    total = weights.sum(-1)
    out = torch.bmm(weights, keys)[..., :d_v] / total.clamp_min(torch.finfo(torch.float64).tiny).unsqueeze(-1)
    out = out.masked_fill(~valid.any(dim=1)[:, None, None], 0.0)
    return out, largest, largest / math.log(2) + total.log2().nan_to_num(neginf=0.0)
