import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_cp.cpu_reference.kernels import index_pages
from sglang_cp.cpu_reference.kernels.quant import FP8

PAGES = 6
WIDTH = 64 * 132
DTYPES = pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])


@settings(max_examples=30)
@given(slots=st.lists(st.integers(0, PAGES * 64 - 1), unique=True, max_size=40), seed=st.integers(0, 2**16))
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_what_is_stored_is_read_back(dtype: torch.dtype, slots: list[int], seed: int) -> None:
    buffer = torch.zeros(PAGES, WIDTH, dtype=dtype)
    key = torch.randn(len(slots), 128, generator=torch.Generator().manual_seed(seed))
    index_pages.fused_store_index_k_cache(key, buffer, torch.tensor(slots, dtype=torch.int64))
    keys, scales = index_pages.read(buffer, torch.tensor(slots, dtype=torch.int64))
    if dtype == torch.float32:
        assert torch.equal(keys, key)
        assert torch.equal(scales, torch.ones(len(slots)))
    else:
        restored = keys.view(FP8).float() * scales.unsqueeze(1)
        torch.testing.assert_close(restored, key, atol=0.02, rtol=1 / 16)
    untouched = torch.tensor([slot for slot in range(PAGES * 64) if slot not in slots], dtype=torch.int64)
    assert not index_pages.read(buffer, untouched)[0].any()


def test_the_byte_layout_is_upstreams() -> None:
    """Per page 64 * 128 bytes of keys, then 64 float32 scales (mem_cache/memory_pool.py, DSATokenToKVPool)."""
    buffer = torch.zeros(2, WIDTH, dtype=torch.uint8)
    key = torch.zeros(1, 128)
    key[0, 5] = 448.0
    index_pages.fused_store_index_k_cache(key, buffer, torch.tensor([64 + 3]))
    assert buffer[1, 3 * 128 + 5] == torch.tensor(448.0).to(FP8).view(torch.uint8)
    assert buffer[1, 64 * 128 :].view(torch.float32)[3] == 1.0
    assert int(buffer.count_nonzero()) == 1 + 2  # the key byte, and 1.0f has two bytes that are not zero


@DTYPES
def test_the_indexers_view_of_the_buffer_holds_the_same_keys(dtype: torch.dtype) -> None:
    buffer = torch.zeros(PAGES, WIDTH, dtype=dtype)
    index_pages.fused_store_index_k_cache(torch.randn(3, 128), buffer, torch.tensor([0, 70, 300]))
    paged = buffer.view(PAGES, 64, 1, 132)
    for got, expected in zip(index_pages.page_views(paged.flatten(1)), index_pages.page_views(buffer), strict=True):
        assert torch.equal(got.float(), expected.float())


@DTYPES
def test_upstreams_readers_follow_the_page_table(dtype: torch.dtype) -> None:
    buffer = torch.zeros(PAGES, WIDTH, dtype=dtype)
    everything = torch.arange(PAGES * 64)
    index_pages.fused_store_index_k_cache(torch.randn(PAGES * 64, 128), buffer, everything)
    table = torch.tensor([[4, 1, 0], [2, 0, 0]], dtype=torch.int32)
    lengths = torch.tensor([130, 7])
    keys, scales = index_pages._get_k_and_s_triton(buffer, table, lengths, 137, 130, 64, 128)
    first = [torch.arange(4 * 64, 5 * 64), torch.arange(64, 128), torch.tensor([0, 1])]
    slots = torch.cat([*first, torch.arange(128, 135)])
    expected_keys, expected_scales = index_pages.read(buffer, slots)
    assert torch.equal(keys, expected_keys)
    assert scales.shape == (137, 4)
    assert torch.equal(scales.view(torch.float32).squeeze(1), expected_scales)
    assert torch.equal(index_pages._get_k_triton(buffer, table[0], 130, 64, 128), keys[:130])
    assert torch.equal(index_pages._get_s_triton(buffer, table[1], 7, 64, 128), scales[130:])


def test_a_count_that_does_not_match_is_refused_before_anything_is_written() -> None:
    buffer = torch.zeros(PAGES, WIDTH, dtype=torch.uint8)
    with pytest.raises(ValueError, match="2 slots, 3 index keys"):
        index_pages.fused_store_index_k_cache(torch.ones(3, 128), buffer, torch.tensor([1, 2]))
    assert not buffer.any()
