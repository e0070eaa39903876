import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_cp.cpu_reference.kernels.quant import FP8, act_quant, quantize, quantize_index_key


@given(seed=st.integers(0, 2**16), magnitude=st.floats(1e-6, 1e6))
def test_a_value_is_off_by_at_most_half_an_fp8_step_of_its_block(seed: int, magnitude: float) -> None:
    x = torch.randn(3, 128, generator=torch.Generator().manual_seed(seed)) * magnitude
    values, scale = quantize(x, 128, round_scale_up_to_power_of_two=False)
    restored = values.double() * scale.double()
    # e4m3: 3 mantissa bits, so half a step is 1/16 of a normal value; below 2**-6 steps are 2**-9 of the scale
    tolerance = torch.maximum(x.double().abs() / 16, scale.double() * 2**-10)
    assert ((restored - x.double()).abs() <= tolerance * 1.001).all()


@given(seed=st.integers(0, 2**16))
def test_the_largest_value_uses_the_whole_fp8_range(seed: int) -> None:
    x = torch.randn(4, 128, generator=torch.Generator().manual_seed(seed))
    values, scale = quantize(x, 128, round_scale_up_to_power_of_two=False)
    assert torch.equal(values.float().abs().amax(-1), torch.full((4,), 448.0))
    torch.testing.assert_close(scale.squeeze(-1), x.abs().amax(-1) / 448)


def test_a_rounded_scale_is_the_next_power_of_two() -> None:
    _, exact = quantize(torch.full((1, 128), 3.0), 128, round_scale_up_to_power_of_two=False)
    _, rounded = quantize(torch.full((1, 128), 3.0), 128, round_scale_up_to_power_of_two=True)
    assert float(rounded) == 2.0**-7 >= float(exact) > 2.0**-8


def test_a_zero_row_stays_zero() -> None:
    values, scale = quantize(torch.zeros(2, 128), 128, round_scale_up_to_power_of_two=False)
    assert not values.float().any()
    assert (scale > 0).all()


def test_one_scale_a_block() -> None:
    x = torch.cat([torch.full((1, 128), 448.0), torch.full((1, 128), 4.48)], dim=1)
    _, scale = quantize(x, 128, round_scale_up_to_power_of_two=False)
    torch.testing.assert_close(scale, torch.tensor([[1.0, 0.01]]))


def test_the_mode_decides_what_upstream_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 4, 128, dtype=torch.float64)
    monkeypatch.setenv("SGLANG_CP_CPU_MODE", "faithful")
    assert act_quant(x)[0].dtype == FP8
    monkeypatch.setenv("SGLANG_CP_CPU_MODE", "exact")
    values, scale = act_quant(x)
    assert values.dtype == torch.float32
    torch.testing.assert_close(values.as_subclass(torch.Tensor), x.float(), rtol=0, atol=0)
    assert torch.equal(scale, torch.ones(2, 4, 1))


def test_queries_look_as_if_on_an_indexed_device() -> None:
    values, _ = act_quant(torch.randn(2, 4, 128))
    assert values.device.index == 0
    assert values[:1].device.index == 0  # upstream slices padding off first
    torch.zeros(1, device=values.device)


def test_an_index_key_and_a_query_are_quantized_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_CP_CPU_MODE", "faithful")
    x = torch.randn(5, 128)
    (query, query_scale), (key, key_scale) = act_quant(x), quantize_index_key(x, exact=False)
    assert torch.equal(query.float().as_subclass(torch.Tensor), key.float())
    assert torch.equal(query_scale, key_scale)
