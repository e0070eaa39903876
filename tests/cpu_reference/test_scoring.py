import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_cp.cpu_reference.kernels import index_pages, scoring
from sglang_cp.cpu_reference.kernels.quant import FP8, quantize

NEG_INF = float("-inf")


def definition(q: torch.Tensor, k: torch.Tensor, weights: torch.Tensor, visible: list[range]) -> torch.Tensor:
    """One product at a time, in float64."""
    score = torch.full((len(q), len(k)), NEG_INF, dtype=torch.float64)
    for m in range(len(q)):
        for n in visible[m]:
            score[m, n] = sum(
                float(weights[m, h]) * max(0.0, float(q[m, h].double() @ k[n].double())) for h in range(q.shape[1])
            )
    return score


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@st.composite
def ragged(draw: st.DrawFn) -> tuple[list[range], int, int]:
    """What each row sees (nothing, also), the number of keys, a seed."""
    keys = draw(st.integers(1, 9))
    spans = draw(st.lists(st.tuples(st.integers(0, keys), st.integers(0, keys)), min_size=1, max_size=5))
    return [range(min(span), max(span)) for span in spans], keys, draw(st.integers(0, 2**16))


@settings(max_examples=40, deadline=None)
@given(case=ragged(), exact=st.booleans())
def test_ragged_scoring_is_the_definition(case: tuple[list[range], int, int], exact: bool) -> None:
    visible, n_keys, seed = case
    q, k = random(len(visible), 3, 128, seed=seed), random(n_keys, 128, seed=seed + 1)
    weights = random(len(visible), 3, seed=seed + 2)
    start = torch.tensor([r.start for r in visible], dtype=torch.int32)
    end = torch.tensor([r.stop for r in visible], dtype=torch.int32)
    if exact:
        stored, scale, queries = k.view(FP8), torch.ones(n_keys), q  # upstream views any stored key as FP8
    else:
        (stored, scale), queries = quantize(k, 128, False), q.to(FP8)
        scale, k, q = scale.squeeze(1), stored.float() * scale, queries.float()
    score = scoring.fp8_mqa_logits(queries, (stored, scale), weights, start, end, clean_logits=False)
    torch.testing.assert_close(score.double(), definition(q, k, weights, visible), atol=1e-4, rtol=1e-6)


def test_a_ragged_row_is_the_same_to_the_bit_in_any_batch() -> None:
    q, k, weights = random(60, 4, 128, seed=1), random(300, 128, seed=2), random(60, 4, seed=3)
    start, end = torch.zeros(60, dtype=torch.int32), torch.arange(241, 301, dtype=torch.int32)
    keys = (k.view(FP8), torch.ones(300))
    together = scoring.fp8_mqa_logits(q, keys, weights, start, end)
    for rows in (slice(1, None, 2), slice(7, 8), slice(10, 53)):
        alone = scoring.fp8_mqa_logits(q[rows], keys, weights[rows], start[rows], end[rows])
        assert torch.equal(alone, together[rows])


def test_a_row_is_not_scored_against_the_keys_of_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three requests in one batch, the second without a row here: each block's products are those of its own keys."""
    multiplied = []
    score = scoring._score
    monkeypatch.setattr(
        scoring, "_score", lambda q, k, w: multiplied.append((q.shape[0], k.shape[0])) or score(q, k, w)
    )
    monkeypatch.setattr(scoring, "_MAX_PRODUCTS", 2 * 40 * 10)
    q, k, weights = random(60, 2, 128, seed=1), random(110, 128, seed=2), random(60, 2, seed=3)
    start = torch.tensor([0] * 20 + [70] * 40, dtype=torch.int32)
    end = torch.cat([torch.arange(1, 21), torch.arange(71, 111)]).int()
    together = scoring.fp8_mqa_logits(q, (k.view(FP8), torch.ones(110)), weights, start, end)
    assert multiplied == [(10, 10), (10, 20), (10, 10), (10, 20), (10, 30), (10, 40)]
    for rows, keys in ((slice(0, 20), slice(0, 20)), (slice(20, 60), slice(70, 110))):
        first = start[rows][0]
        alone = scoring.fp8_mqa_logits(
            q[rows], (k[keys].view(FP8), torch.ones(110)[keys]), weights[rows], start[rows] - first, end[rows] - first
        )
        assert torch.equal(alone, together[rows, keys])
        assert together[rows].isfinite().sum() == alone.isfinite().sum()


def test_working_in_parts_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, weights = random(10, 4, 128, seed=4), random(50, 128, seed=5), random(10, 4, seed=6)
    start, end = torch.zeros(10, dtype=torch.int32), torch.full((10,), 50, dtype=torch.int32)
    whole = scoring.fp8_mqa_logits(q, (k.view(FP8), torch.ones(50)), weights, start, end)
    monkeypatch.setattr(scoring, "_MAX_PRODUCTS", 3 * 4 * 50)
    parts = scoring.fp8_mqa_logits(q, (k.view(FP8), torch.ones(50)), weights, start, end)
    assert torch.equal(parts, whole)


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 140), min_size=1, max_size=4),
    exact=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_paged_scoring_is_ragged_scoring_through_a_page_table(lengths: list[int], exact: bool, seed: int) -> None:
    batch, pages = len(lengths), 12
    buffer = torch.zeros(pages, 64 * 132, dtype=torch.float32 if exact else torch.uint8)
    index_pages.fused_store_index_k_cache(random(pages * 64, 128, seed=seed), buffer, torch.arange(pages * 64))
    generator = torch.Generator().manual_seed(seed)
    table = torch.stack([torch.randperm(pages, generator=generator)[:3] for _ in range(batch)])
    q = random(batch, 1, 2, 128, seed=seed + 9)
    q = q if exact else q.to(FP8)
    weights = random(batch, 2, seed=seed + 10)
    context = torch.tensor(lengths, dtype=torch.int32).unsqueeze(1)
    got = scoring.fp8_paged_mqa_logits(
        q, buffer.view(pages, 64, 1, 132), weights, context, table.int(), torch.empty(0), 192, clean_logits=False
    )
    assert got.shape == (batch, 192)
    for i, length in enumerate(lengths):
        assert (got[i, length:] == NEG_INF).all()
        keys, scales = index_pages.read(buffer, index_pages.slots_of(table[i], length))
        expected = scoring.fp8_mqa_logits(
            q[i], (keys.view(FP8), scales), weights[i : i + 1], torch.tensor([0]), torch.tensor([length])
        )
        torch.testing.assert_close(got[i : i + 1, :length], expected, atol=1e-5, rtol=1e-6)


def test_paged_rows_of_one_request_end_one_token_apart() -> None:
    buffer = torch.zeros(1, 64 * 132)
    index_pages.fused_store_index_k_cache(random(64, 128, seed=1), buffer, torch.arange(64))
    args = (random(1, 3, 2, 128, seed=2), buffer.view(1, 64, 1, 132), random(3, 2, seed=3))
    table = torch.zeros(1, 1, dtype=torch.int32)
    short = scoring.fp8_paged_mqa_logits(*args, torch.tensor([[10]]), table, torch.empty(0), 64)
    spelled = scoring.fp8_paged_mqa_logits(*args, torch.tensor([[8, 9, 10]]), table, torch.empty(0), 64)
    assert torch.equal(short, spelled)
    assert (short > NEG_INF).sum(1).tolist() == [8, 9, 10]
