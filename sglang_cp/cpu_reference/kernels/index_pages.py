"""The paged index-key buffer: a page's keys, then the page's scales.

Faithful: uint8 `[pages, 64 * (128 + 4)]`; per page 64 * 128 bytes of FP8 keys, then 64 float32 scales.
Exact: the same shape with float32 elements; keys are float32, and of a token's four scale elements the first is used.
Upstream views the buffer as `[pages, 64, 1, 132]`, which therefore works for both.
"""

from __future__ import annotations

import torch

from sglang_cp.cpu_reference.kernels.quant import FP8, quantize_index_key

PAGE_SIZE = 64
INDEX_HEAD_DIM = 128
_SCALE_ELEMENTS = 4


def page_views(buffer: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Writable views of a buffer: keys `[pages, 64, 128]` (FP8 or float32), scales `[pages, 64]` (float32)."""
    n_pages = buffer.shape[0]
    pages = buffer.view(n_pages, PAGE_SIZE * (INDEX_HEAD_DIM + _SCALE_ELEMENTS))
    keys = pages[:, : PAGE_SIZE * INDEX_HEAD_DIM].view(n_pages, PAGE_SIZE, INDEX_HEAD_DIM)
    scales = pages[:, PAGE_SIZE * INDEX_HEAD_DIM :]
    if buffer.dtype == torch.uint8:
        return keys.view(FP8), scales.view(torch.float32)
    if buffer.dtype == torch.float32:
        return keys, scales.view(n_pages, PAGE_SIZE, _SCALE_ELEMENTS)[..., 0]
    raise TypeError(f"An index-key buffer holds uint8 (faithful) or float32 (exact), not {buffer.dtype}.")


def write(buffer: torch.Tensor, slots: torch.Tensor, keys: torch.Tensor, scales: torch.Tensor) -> None:
    """Write `keys` `[n, 128]` and `scales` `[n]` or `[n, 1]` at token slots `[n]`."""
    if not slots.shape[0] == keys.shape[0] == scales.shape[0]:
        raise ValueError(
            f"{slots.shape[0]} slots, {keys.shape[0]} index keys and {scales.shape[0]} scales must be the same number."
        )
    stored_keys, stored_scales = page_views(buffer)
    page, offset = slots.long() // PAGE_SIZE, slots.long() % PAGE_SIZE
    if stored_keys.dtype == FP8:  # index_put_ knows no FP8: move bytes
        stored_keys, keys = stored_keys.view(torch.uint8), keys.view(torch.uint8)
    stored_keys[page, offset] = keys
    stored_scales[page, offset] = scales.reshape(-1)


def read(buffer: torch.Tensor, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys `[n, 128]` (bytes of FP8, or float32) and scales `[n]` (float32) at token slots `[n]`."""
    stored_keys, stored_scales = page_views(buffer)
    page, offset = slots.long() // PAGE_SIZE, slots.long() % PAGE_SIZE
    if stored_keys.dtype == FP8:
        stored_keys = stored_keys.view(torch.uint8)
    return stored_keys[page, offset], stored_scales[page, offset]


def slots_of(pages: torch.Tensor, length: int) -> torch.Tensor:
    """Token slots `[length]` of a request whose page table row is `pages` `[num_pages]`."""
    position = torch.arange(length)
    return pages.long()[position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE


# Twins under upstream's names (layers/attention/dsa/index_buf_accessor.py, jit_kernel/fused_store_index_cache.py).


def _set_k_and_s_triton(
    buf: torch.Tensor, loc: torch.Tensor, index_k: torch.Tensor, index_k_scale: torch.Tensor, page_size: int
) -> None:
    write(buf, loc, index_k, index_k_scale)


def _get_k_triton(
    buf: torch.Tensor, page_indices: torch.Tensor, seq_len: int, page_size: int, index_head_dim: int
) -> torch.Tensor:
    return read(buf, slots_of(page_indices, seq_len))[0]


def _get_s_triton(
    buf: torch.Tensor, page_indices: torch.Tensor, seq_len: int, page_size: int, index_head_dim: int
) -> torch.Tensor:
    return _scale_bytes(read(buf, slots_of(page_indices, seq_len))[1])


def _get_k_and_s_triton(
    buf: torch.Tensor,
    page_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    seq_len_sum: int,
    max_seq_len: int,
    page_size: int,
    index_head_dim: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and scale bytes of all requests, one after the other: `[sum, 128]`, uint8 `[sum, 4]`."""
    slots = torch.cat([slots_of(row, int(length)) for row, length in zip(page_indices, seq_lens.tolist(), strict=True)])
    keys, scales = read(buf, slots)
    return keys, _scale_bytes(scales)


def _scale_bytes(scales: torch.Tensor) -> torch.Tensor:
    return scales.contiguous().unsqueeze(-1).view(torch.uint8)


def can_use_dsa_fused_store(key_dtype: torch.dtype, indices_dtype: torch.dtype, page_size: int) -> bool:
    return page_size == PAGE_SIZE


def fused_store_index_k_cache(
    key: torch.Tensor,
    index_k_with_scale: torch.Tensor,
    out_cache_loc: torch.Tensor,
    page_size: int = PAGE_SIZE,
) -> None:
    """Quantize `key` `[n, 128]` as the buffer stores it, and write it at slots `out_cache_loc` `[n]`."""
    key = key.reshape(-1, INDEX_HEAD_DIM)
    keys, scales = quantize_index_key(key, exact=index_k_with_scale.dtype == torch.float32)
    write(index_k_with_scale, out_cache_loc, keys, scales)
