import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_cp.cpu_reference.kernels import sparse_mla
from sglang_cp.cpu_reference.kernels.sparse_mla import flash_mla_sparse_fwd

WIDTH, D_V = 24, 16


def definition(
    q: torch.Tensor, kv: torch.Tensor, indices: list[list[int]], scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """softmax(q . k * scale) v over the valid indices, row by row and head by head, in float64."""
    out = torch.zeros(q.shape[0], q.shape[1], D_V, dtype=torch.float64)
    largest = torch.full(q.shape[:2], -math.inf, dtype=torch.float64)
    lse = torch.full(q.shape[:2], -math.inf, dtype=torch.float64)
    for row, chosen in enumerate(indices):
        valid = [slot for slot in chosen if 0 <= slot < len(kv)]
        for head in range(q.shape[1] if valid else 0):
            keys = kv[valid, 0].double()
            logits = keys @ q[row, head].double() * scale
            out[row, head] = torch.softmax(logits, 0) @ keys[:, :D_V]
            largest[row, head] = logits.max()
            lse[row, head] = torch.logsumexp(logits, 0) / math.log(2)
    return out, largest, lse


@st.composite
def cases(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, list[list[int]]]:
    rows, heads, slots = draw(st.integers(0, 5)), draw(st.integers(1, 4)), draw(st.integers(1, 12))
    topk = draw(st.integers(1, 8))
    index = st.integers(-1, slots + 1)  # -1 and anything past the pool is invalid
    indices = draw(st.lists(st.lists(index, min_size=topk, max_size=topk), min_size=rows, max_size=rows))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    q = torch.randn(rows, heads, WIDTH, generator=generator)
    q[:, torch.tensor(draw(st.lists(st.booleans(), min_size=heads, max_size=heads)))] = 0.0  # padded heads
    return q, torch.randn(slots, 1, WIDTH, generator=generator), indices


@settings(max_examples=80, deadline=None)
@given(cases(), st.sampled_from([torch.float32, torch.float64]))
def test_it_is_the_definition(case: tuple[torch.Tensor, torch.Tensor, list[list[int]]], dtype: torch.dtype) -> None:
    q, kv, indices = case
    index = torch.tensor(indices, dtype=torch.int32).reshape(len(q), 1, len(indices[0]) if indices else 3)
    out, largest, lse = flash_mla_sparse_fwd(q.to(dtype), kv, index, 0.3, D_V)
    assert out.dtype == dtype
    for got, expected in zip((out, largest, lse), definition(q, kv, indices, 0.3), strict=True):
        torch.testing.assert_close(got.double(), expected, atol=1e-5, rtol=1e-5)


def test_a_padding_row_gives_zeros_whatever_lies_in_the_pool() -> None:
    kv = torch.full((4, 1, WIDTH), float("nan"))
    out, largest, _ = flash_mla_sparse_fwd(torch.randn(2, 3, WIDTH), kv, torch.full((2, 1, 5), -1), 1.0, D_V)
    assert torch.equal(out, torch.zeros(2, 3, D_V))
    assert (largest == -math.inf).all()


def test_a_stale_slot_does_not_leak_into_rows_that_did_not_choose_it() -> None:
    kv = torch.randn(4, 1, WIDTH)
    kv[0] = float("nan")
    out, _, _ = flash_mla_sparse_fwd(torch.randn(1, 2, WIDTH), kv, torch.tensor([[[2, -1, 3]]]), 1.0, D_V)
    assert out.isfinite().all()


def test_padding_the_heads_changes_nothing() -> None:
    q, kv = torch.randn(6, 4, WIDTH), torch.randn(9, 1, WIDTH)
    index = torch.randint(-1, 9, (6, 1, 7), dtype=torch.int32)
    padded = torch.zeros(6, 64, WIDTH)
    padded[:, :4] = q
    torch.testing.assert_close(
        flash_mla_sparse_fwd(padded, kv, index, 1.0, D_V)[0][:, :4], flash_mla_sparse_fwd(q, kv, index, 1.0, D_V)[0]
    )


def test_a_row_is_the_same_to_the_bit_in_any_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    q, kv = torch.randn(40, 4, 576, dtype=torch.float64), torch.randn(200, 1, 576)
    index = torch.randint(-1, 200, (40, 1, 64), dtype=torch.int32)
    together = flash_mla_sparse_fwd(q, kv, index, 0.1)[0]
    assert torch.equal(flash_mla_sparse_fwd(q[1::2], kv, index[1::2], 0.1)[0], together[1::2])
    monkeypatch.setattr(sparse_mla, "_MAX_GATHERED_ELEMENTS", 3 * 64 * 576)
    assert torch.equal(flash_mla_sparse_fwd(q, kv, index, 0.1)[0], together)


def test_large_logits_do_not_overflow() -> None:
    q, kv = torch.full((1, 1, WIDTH), 1e3), torch.ones(2, 1, WIDTH)
    out, _, lse = flash_mla_sparse_fwd(q, kv, torch.tensor([[[0, 1]]]), 1.0, D_V)
    torch.testing.assert_close(out, torch.ones(1, 1, D_V))
    assert lse.isfinite().all()


def test_what_dsa_does_not_use_is_refused() -> None:
    args = (torch.randn(1, 1, WIDTH), torch.randn(1, 1, WIDTH), torch.zeros(1, 1, 1, dtype=torch.int32), 1.0, D_V)
    with pytest.raises(NotImplementedError, match="sinks"):
        flash_mla_sparse_fwd(*args, attn_sink=torch.zeros(1))
