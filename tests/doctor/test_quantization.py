from __future__ import annotations

from typing import Any

import pytest

from sglang_cp.doctor.quantization import FP8_PER_CHANNEL, MXFP4, SIXTEEN_BIT, Format, format_of
from sglang_cp.errors import UsageError

FP4 = {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}}
FP8 = {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_channel"}}


def quark(**more: Any) -> dict[str, Any]:
    return {"quantization_config": {"quant_method": "quark", "global_quant_config": FP4, **more}}


@pytest.mark.parametrize(
    ("form", "rows", "columns", "elements", "scales"),
    [
        (SIXTEEN_BIT, 3, 5, 30, 0),
        (MXFP4, 2, 64, 64, 4),
        (Format(8, 4, (128, 128)), 129, 128, 129 * 128, 2 * 4),
        (FP8_PER_CHANNEL, 6, 7, 42, 24),
        (Format(8, 4), 6, 7, 42, 4),
    ],
)
def test_elements_and_scales(form: Format, rows: int, columns: int, elements: int, scales: int) -> None:
    assert form.parts(rows, columns) == (elements, scales)
    assert form.num_bytes(rows, columns) == elements + scales


def test_unquantized_config_has_16_bits_everywhere() -> None:
    assert format_of({})("model.layers.0.self_attn.o_proj") == SIXTEEN_BIT


def test_amds_exclude_list_leaves_routed_and_shared_experts_in_mxfp4(glm_mxfp4) -> None:
    form = format_of(glm_mxfp4)
    for name in ("experts.7.down_proj", "experts.0.gate_proj", "shared_experts.up_proj"):
        assert form(f"model.layers.3.mlp.{name}") == MXFP4
    for name in (
        "layers.3.self_attn.q_b_proj",
        "layers.3.self_attn.indexer.wq_b",
        "layers.0.mlp.gate_proj",
        "layers.0.mlp.down_proj",
        "layers.78.mlp.experts.0.gate_proj",
        "layers.78.eh_proj",
    ):
        assert form(f"model.{name}") == SIXTEEN_BIT


@pytest.mark.parametrize(
    ("pattern", "excluded"),
    [
        ("model.layers.3.self_attn.o_proj", True),
        ("model.layers.3.self_attn", True),
        ("model.layers.3", True),
        ("re:.*self_attn.*", True),
        ("*o_proj", True),
        ("model.layers.33", False),
        ("o_pro", False),
        ("re:self_attn", False),
        ("self_attn*", False),
    ],
)
def test_forms_of_exclude_entries(pattern: str, excluded: bool) -> None:
    form = format_of(quark(exclude=[pattern]))
    assert form("model.layers.3.self_attn.o_proj") == (SIXTEEN_BIT if excluded else MXFP4)


def test_quark_takes_the_exclude_list_before_layer_patterns_before_the_global_scheme() -> None:
    form = format_of(quark(exclude=["*.o_proj"], layer_quant_config={"*self_attn*": FP8}))
    assert form("model.layers.0.self_attn.o_proj") == SIXTEEN_BIT
    assert form("model.layers.0.self_attn.q_b_proj") == FP8_PER_CHANNEL
    assert form("model.layers.3.mlp.experts.0.up_proj") == MXFP4


@pytest.mark.parametrize(
    ("quantization", "words"),
    [
        ({"quant_method": "awq"}, "Quantization 'awq'"),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "int4"}}}, "Quark weights of int4"),
    ],
)
def test_unknown_formats_are_named(quantization: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        format_of({"quantization_config": quantization})
