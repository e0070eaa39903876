import math

import pytest
import torch

from sglang_cp.cpu_reference.kernels import fused_indexer, index_pages
from sglang_cp.cpu_reference.kernels.quant import FP8


def cos_sin_cache(positions: int = 50) -> torch.Tensor:
    angle = torch.arange(positions).unsqueeze(1) * 10000.0 ** (-torch.arange(32) / 32)
    return torch.cat([angle.cos(), angle.sin()], dim=1)


def rotated(x: list[float], position: int) -> list[float]:
    """Pair (2i, 2i + 1) of the first 64 turned by position / 10000^(i / 32), one complex product at a time."""
    y = list(x)
    for i in range(32):
        turn = complex(math.cos(position * 10000.0 ** (-i / 32)), math.sin(position * 10000.0 ** (-i / 32)))
        z = complex(x[2 * i], x[2 * i + 1]) * turn
        y[2 * i], y[2 * i + 1] = z.real, z.imag
    return y


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_CP_CPU_MODE", "exact")


def test_queries_are_rotated_and_the_gates_carry_their_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    q, gates, positions = torch.randn(3, 2, 128), torch.randn(3, 2), torch.tensor([0, 7, 40])
    values, weights = fused_indexer.fused_q_indexer_rope_first_quant(q, gates, 0.25, cos_sin_cache(), positions)
    expected = torch.tensor(
        [[rotated(head, p) for head in row] for row, p in zip(q.tolist(), positions.tolist(), strict=True)]
    )
    torch.testing.assert_close(values.as_subclass(torch.Tensor), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(weights, gates.unsqueeze(-1) * 0.25)

    monkeypatch.setenv("SGLANG_CP_CPU_MODE", "faithful")
    values, weights = fused_indexer.fused_q_indexer_rope_first_quant(q, gates, 0.25, cos_sin_cache(), positions)
    assert values.dtype == FP8
    scale = weights / (gates.unsqueeze(-1) * 0.25)
    restored = values.float().as_subclass(torch.Tensor) * scale
    torch.testing.assert_close(restored, expected, atol=0.02, rtol=1 / 16)


def test_keys_are_normalized_then_rotated_then_stored() -> None:
    k, gamma, beta = torch.randn(2, 128), torch.randn(128), torch.randn(128)
    positions, slots = torch.tensor([3, 9]), torch.tensor([65, 2])
    centred = k.double() - k.double().mean(1, keepdim=True)
    normalized = centred / (centred.square().mean(1, keepdim=True) + 1e-6).sqrt() * gamma + beta
    expected = torch.tensor([rotated(row, p) for row, p in zip(normalized.tolist(), [3, 9], strict=True)])
    key = fused_indexer.fused_k_indexer_norm_rope(k, gamma, beta, 1e-6, cos_sin_cache(), positions)
    torch.testing.assert_close(key, expected, atol=1e-5, rtol=1e-5)
    buffer = torch.zeros(2, 64 * 132)
    fused_indexer.fused_k_indexer_norm_rope_store(k, buffer, slots, gamma, beta, 1e-6, cos_sin_cache(), positions, 64)
    assert torch.equal(index_pages.read(buffer, slots)[0], key)
