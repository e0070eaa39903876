"""Sparse multi-head latent attention (twin of `sgl_kernel.flash_mla.flash_mla_sparse_fwd`)."""

from __future__ import annotations

import math

import torch

_MAX_GATHERED_ELEMENTS = 1 << 25  # float32 latents gathered at a time: 128 MiB


def flash_mla_sparse_fwd(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    d_v: int = 512,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention of every row over its own chosen latents, computed in float32 (in float64 for a float64 q).

    q `[rows, heads, 576]`; kv `[slots, 1, 576]`, whose first `d_v` values are the value vector too; indices
    `[rows, 1, topk]`, invalid where -1 or >= slots. Returns the output `[rows, heads, d_v]` in q's dtype, the largest
    logit and the base-2 log-sum-exp, both float32 `[rows, heads]`. A row without a valid index gives zeros, -inf, -inf.
    Raises NotImplementedError for sinks and per-row lengths, which DSA does not use.
    """
    if attn_sink is not None or topk_length is not None:
        raise NotImplementedError("The CPU reference of sparse MLA has no attention sinks and no per-row lengths.")
    rows, heads, width = q.shape
    latents, chosen = kv.flatten(1), indices.squeeze(1)
    out = torch.zeros(rows, heads, d_v, dtype=q.dtype)
    max_logits = torch.full((rows, heads), -math.inf)
    lse = torch.full((rows, heads), -math.inf)
    rows_at_a_time = max(1, _MAX_GATHERED_ELEMENTS // max(1, chosen.shape[1] * width))
    # Upstream pads the heads to 64 with zero queries: they attend uniformly, so one of them stands for all.
    live = q.ne(0).any(dim=2).any(dim=0).nonzero().squeeze(1)
    idle = q.ne(0).any(dim=2).any(dim=0).logical_not().nonzero().squeeze(1)
    computed = torch.cat([live, idle[:1]])
    for begin in range(0, rows, rows_at_a_time):
        part = slice(begin, begin + rows_at_a_time)
        part_out, part_max, part_lse = _attend(q[part][:, computed], latents, chosen[part], sm_scale, d_v)
        for target, source in ((out, part_out), (max_logits, part_max), (lse, part_lse)):
            target[part, live] = source[:, : live.numel()].to(target.dtype)
            if idle.numel():
                target[part, idle] = source[:, -1:].to(target.dtype)
    return out, max_logits, lse


def _attend(
    q: torch.Tensor, latents: torch.Tensor, chosen: torch.Tensor, sm_scale: float, d_v: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    valid = (chosen >= 0) & (chosen < latents.shape[0])
    compute_dtype = torch.promote_types(q.dtype, torch.float32)
    keys = latents[torch.where(valid, chosen, 0).long()].to(compute_dtype)  # [rows, topk, width]
    keys = keys.masked_fill(~valid.unsqueeze(-1), 0.0)  # a stale NaN in slot 0 must not leak through a zero weight
    logits = torch.bmm(q.to(compute_dtype), keys.transpose(1, 2)) * sm_scale  # [rows, heads, topk]
    logits = logits.masked_fill(~valid.unsqueeze(1), -math.inf)
    largest = logits.amax(-1)
    weights = torch.exp(logits - largest.nan_to_num(neginf=0.0).unsqueeze(-1))  # all zero in a row without a key
    total = weights.sum(-1)
    out = torch.bmm(weights, keys[..., :d_v]) / total.clamp_min(torch.finfo(compute_dtype).tiny).unsqueeze(-1)
    return out, largest, largest / math.log(2) + total.log2().nan_to_num(neginf=0.0)
