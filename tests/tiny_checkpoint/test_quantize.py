"""Quantized attention weights: names, shapes and types of published checkpoints, values near the unquantized ones."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sglang_cp.cpu_reference.kernels import mxfp4
from sglang_cp.tiny_checkpoint import TinyConfig, write_tiny_checkpoint
from sglang_cp.tiny_checkpoint.quantize import stored

FP8, F32 = torch.float8_e4m3fn, torch.float32
SELF_ATTN = "model.layers.0.self_attn"


@pytest.fixture(params=["glm", "deepseek-v32"])
def arch(request: pytest.FixtureRequest) -> Any:
    return request.param


def load(directory: Path, attn_quant: Any, arch: Any = "glm") -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    write_tiny_checkpoint(directory, TinyConfig.stored_as(attn_quant, arch=arch, layers=2))
    return load_file(directory / "model.safetensors"), json.loads((directory / "config.json").read_text())


def quantized(tensors: dict[str, torch.Tensor]) -> set[str]:
    """Names below the first layer's attention of what is not a plain matrix or vector."""
    return {
        name.removeprefix(f"{SELF_ATTN}.")
        for name, tensor in tensors.items()
        if name.startswith(SELF_ATTN) and tensor.dtype is not torch.bfloat16
    }


def test_block_fp8(tmp_path: Path, arch: Any) -> None:
    tensors, config = load(tmp_path / "tiny", "block-fp8", arch)
    linears = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "indexer.wq_b", "indexer.wk")
    assert quantized(tensors) == {f"{name}.weight{end}" for name in linears for end in ("", "_scale_inv")}
    for name in linears:
        weight, scale = (tensors[f"{SELF_ATTN}.{name}.weight{end}"] for end in ("", "_scale_inv"))
        assert (weight.dtype, scale.dtype) == (FP8, F32)
        assert scale.shape == tuple(-(-size // 128) for size in weight.shape)
    scale = tensors[f"{SELF_ATTN}.kv_b_proj.weight_scale_inv"]
    assert scale.unique().numel() > 1 or arch == "deepseek-v32"
    assert torch.equal(scale.log2(), scale.log2().round()) == (arch == "deepseek-v32")
    given = config["quantization_config"]
    assert (given["quant_method"], given["weight_block_size"]) == ("fp8", [128, 128])
    assert given.get("scale_fmt") == ("ue8m0" if arch == "deepseek-v32" else None)


def test_quark_fp8(tmp_path: Path, arch: Any) -> None:
    tensors, config = load(tmp_path / "tiny", "quark-fp8", arch)
    for name in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj", "indexer.wq_b", "indexer.wk"):
        weight, scale = (tensors[f"{SELF_ATTN}.{name}.weight{end}"] for end in ("", "_scale"))
        assert (weight.dtype, scale.dtype, scale.shape) == (FP8, F32, weight.shape[:1])
    assert tensors[f"{SELF_ATTN}.kv_b_proj.weight_scale"].shape == ()
    assert config["quantization_config"]["quant_method"] == "quark"


def test_mxfp4(tmp_path: Path, arch: Any) -> None:
    tensors, config = load(tmp_path / "tiny", "mxfp4", arch)
    linears = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj")
    assert quantized(tensors) == {f"{name}.weight{end}" for name in linears for end in ("", "_scale")}
    packed, scales = (tensors[f"{SELF_ATTN}.o_proj.weight{end}"] for end in ("", "_scale"))
    assert (packed.dtype, packed.shape) == (torch.uint8, (128, 512 // 2))
    assert (scales.dtype, scales.shape) == (torch.uint8, (128, 512 // 32))
    assert config["quantization_config"]["quant_method"] == "quark"


def test_nothing_else_changes(tmp_path: Path) -> None:
    plain, plain_config = load(tmp_path / "plain", "none")
    tensors, config = load(tmp_path / "tiny", "mxfp4")
    assert config.pop("quantization_config")
    assert config == plain_config
    same = [name for name in plain if name in tensors and tensors[name].dtype == plain[name].dtype]
    assert {name.split(".")[-2] for name in plain.keys() - set(same)} == {
        "q_a_proj",
        "q_b_proj",
        "kv_a_proj_with_mqa",
        "o_proj",
    }
    assert all(tensors[name].equal(plain[name]) for name in same)


@pytest.mark.parametrize("name", ["kv_a_proj_with_mqa", "o_proj"])
@pytest.mark.parametrize("attn_quant", ["block-fp8", "quark-fp8", "mxfp4"])
def test_a_reader_gets_the_weight_back(attn_quant: Any, name: str) -> None:
    """576 outputs are not a whole number of blocks."""
    generator = torch.Generator().manual_seed(0)
    outputs, inputs = 576 if name.startswith("kv_a") else 128, 256
    weight = torch.randn(outputs, inputs, generator=generator) * torch.logspace(-2, 2, outputs).unsqueeze(1)
    parts = list(stored(f"{SELF_ATTN}.{name}.weight", weight, TinyConfig.stored_as(attn_quant)).values())
    values, scale = parts
    if attn_quant == "mxfp4":
        restored = mxfp4.dequantize(values, scale)
    else:
        rows = torch.arange(outputs) // 128 if attn_quant == "block-fp8" else torch.arange(outputs)
        columns = torch.arange(inputs) // 128 if attn_quant == "block-fp8" else torch.zeros(inputs, dtype=torch.long)
        by_row = scale if attn_quant == "block-fp8" else scale.unsqueeze(1)
        restored = values.double() * by_row.double()[rows][:, columns]
    error = [
        float((a.double() - b).norm() / a.norm()) for a, b in zip(weight.split(128), restored.split(128), strict=True)
    ]
    assert max(error) < (0.2 if attn_quant == "mxfp4" else 0.04)


def test_sglang_cannot_split_channel_scales_of_kv_b_proj() -> None:
    """Why Quark's kv_b_proj has one scale here: once this fails, it can have channel scales as the others have."""
    fp8_utils = pytest.importorskip("sglang.srt.layers.quantization.fp8_utils")
    weight = torch.randn(768, 512)
    values, scale = stored(f"{SELF_ATTN}.o_proj.weight", weight, TinyConfig.stored_as("quark-fp8")).values()
    with pytest.raises(RuntimeError, match="must match the size"):
        fp8_utils.channel_quant_to_tensor_quant(values, scale)
