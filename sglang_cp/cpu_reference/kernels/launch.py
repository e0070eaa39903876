"""Torch twins of Triton kernels that upstream launches itself, with `kernel[grid](...)`."""

from __future__ import annotations

from collections.abc import Callable

import torch


class Launch:
    """Stands where a Triton kernel stood: `kernel[grid](*args)` calls the twin once, whatever the grid."""

    def __init__(self, twin: Callable[..., None]) -> None:
        self.twin = twin

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self.twin


def alloc_extend(
    prefix_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    last_loc: torch.Tensor,
    free_pages: torch.Tensor,
    out_indices: torch.Tensor,
    bs_upper: int,
    page_size: int,
) -> None:
    """Token slots of every request's new tokens, request after request, into `out_indices` `[sum of extends]`.

    A request first fills its last page (after slot `last_loc`), then takes pages from the front of `free_pages`.
    With too few free pages nothing is written: the allocator, which checks that afterwards, refuses the batch.
    """
    pages_before = _pages(prefix_lens, page_size)
    new_pages = _pages(seq_lens, page_size) - pages_before
    if int(new_pages.sum()) > free_pages.numel():
        return
    first_page = new_pages.cumsum(0) - new_pages
    written = 0
    for i, (prefix, length) in enumerate(zip(prefix_lens.tolist(), seq_lens.tolist(), strict=True)):
        position = torch.arange(prefix, length)
        page_number = position // page_size - int(pages_before[i])  # -1: the page the prefix left partly filled
        in_old_page = page_number < 0
        page = free_pages[(int(first_page[i]) + page_number).clamp_min(0)] if free_pages.numel() else page_number
        slot = torch.where(in_old_page, last_loc[i] + 1 + (position - prefix), page * page_size + position % page_size)
        out_indices[written : written + slot.numel()] = slot
        written += slot.numel()


def alloc_decode(
    seq_lens: torch.Tensor,
    last_loc: torch.Tensor,
    free_pages: torch.Tensor,
    out_indices: torch.Tensor,
    bs_upper: int,
    page_size: int,
) -> None:
    """The slot of every request's next token into `out_indices` `[batch]`; `seq_lens` counts that token.

    With too few free pages nothing is written, as above.
    """
    opens_page = (seq_lens - 1) % page_size == 0
    if int(opens_page.sum()) > free_pages.numel():
        return
    slot = (last_loc + 1).to(out_indices.dtype)
    slot[opens_page] = free_pages[: int(opens_page.sum())] * page_size
    out_indices.copy_(slot)


def round_robin_split_q_seqs(
    in_seqs: torch.Tensor,
    out_seqs: torch.Tensor,
    bs_idx: torch.Tensor,
    tokens: int,
    cp_size: int,
    cp_rank: int,
) -> None:
    """Rows of each request that rank `cp_rank` owns when the flattened rows are dealt out round robin.

    Requests without a row are left out; `bs_idx` names the others. Upstream sizes both outputs accordingly.
    """
    end = in_seqs.long().cumsum(0)
    owned_before_end = (end - cp_rank + cp_size - 1) // cp_size  # rows r < end with r % cp_size == cp_rank
    owned = owned_before_end.diff(prepend=owned_before_end.new_zeros(1))
    selected = owned.nonzero().squeeze(1)
    out_seqs.copy_(owned[selected])
    bs_idx.copy_(selected)


def set_mla_kv_buffer_triton(
    kv_buffer: torch.Tensor, loc: torch.Tensor, cache_k_nope: torch.Tensor, cache_k_rope: torch.Tensor
) -> None:
    """Write latents `[n, (1,) 512]` and rotary parts `[n, (1,) 64]` at slots `loc` `[n]` of `[slots, 1, 576]`."""
    latent = torch.cat([cache_k_nope.reshape(loc.numel(), -1), cache_k_rope.reshape(loc.numel(), -1)], dim=1)
    kv_buffer[loc.long(), 0] = latent


def _pages(tokens: torch.Tensor, page_size: int) -> torch.Tensor:
    return (tokens + page_size - 1) // page_size
