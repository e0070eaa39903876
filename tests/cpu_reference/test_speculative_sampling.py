"""Sampling from drafts gives the target's own distribution, whatever was drafted."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_cp.cpu_reference.kernels import speculative_sampling as twins

weights = st.lists(st.integers(1, 50), min_size=4, max_size=9, unique=True)


@given(weights, st.integers(1, 12))
def test_top_k_keeps_the_likeliest(values: list[int], k: int) -> None:
    probs = torch.tensor([values], dtype=torch.float32) / sum(values)
    kept = sorted(values, reverse=True)[:k]
    expected = [value / sum(kept) if value in kept else 0.0 for value in values]
    assert twins.top_k_renorm_prob(probs, torch.tensor([k]))[0].tolist() == pytest.approx(expected)


@given(weights, st.floats(0.05, 1.0))
def test_top_p_keeps_as_few_as_have_p(values: list[int], p: float) -> None:
    probs = torch.tensor([values], dtype=torch.float64) / sum(values)
    kept: list[int] = []
    for value in sorted(values, reverse=True):
        if sum(kept) / sum(values) < p - 1e-12:
            kept.append(value)
    expected = [value / sum(kept) if value in kept else 0.0 for value in values]
    if abs(sum(kept[:-1]) / sum(values) - p) > 1e-9:
        got = twins.top_p_renorm_prob(probs, torch.tensor([p], dtype=torch.float64))[0].tolist()
        assert got == pytest.approx(expected)


def test_tokens_are_distributed_as_the_target_says() -> None:
    """Two drafts for the next token, of which each may be taken: every token comes as often as its probability says."""
    draws, vocabulary = 4000, 4
    generator = torch.Generator().manual_seed(0)
    target = torch.tensor([0.1, 0.4, 0.2, 0.3])
    n = 3
    predicts = torch.zeros(draws * n, dtype=torch.int32)
    accept_index = torch.full((draws, 2), -1, dtype=torch.int32)
    right = torch.empty(draws, dtype=torch.int32)
    probs = target.expand(draws, n, vocabulary).clone()
    twins.tree_speculative_sampling_target_only(
        predicts,
        accept_index,
        right,
        torch.tensor([[9, 1, 3]]).expand(draws, n),
        torch.arange(draws * n).view(draws, n),
        torch.tensor([[1, -1, -1]]).expand(draws, n),
        torch.tensor([[-1, 2, -1]]).expand(draws, n),
        torch.rand(draws, n, generator=generator),
        torch.rand(draws, generator=generator),
        probs,
        torch.zeros_like(probs),
    )
    first = predicts.view(draws, n)[:, 0].long()
    share = torch.bincount(first, minlength=vocabulary) / draws
    assert share.tolist() == pytest.approx(target.tolist(), abs=0.03)
    assert right.double().mean().item() == pytest.approx(0.7, abs=0.03)  # those whose token was drafted
    drafted = (first == 1) | (first == 3)
    assert right.bool().equal(drafted)
    expected = torch.stack(
        [torch.arange(draws) * n, torch.where(drafted, torch.arange(draws) * n + first // 2 + 1, -1)], 1
    )
    assert accept_index.equal(expected.int())
