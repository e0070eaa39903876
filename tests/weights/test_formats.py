"""Upstream's own linear layers and quantization methods, one rank at a time: every rank's shards against the whole.

The CPU reference kernels stand in for the GPU's. They round a sum once, so shards and whole agree to the bit.
"""

import functools
import importlib
import pkgutil
from types import SimpleNamespace

import pytest
import torch

from sglang_cp.cpu_reference.hooks import REPLACEMENTS, How
from sglang_cp.tiny_checkpoint.config import TinyConfig
from sglang_cp.tiny_checkpoint.quantize import stored
from sglang_cp.tiny_checkpoint.weights import draw, tensor_specs
from sglang_cp.weights.projections import ColumnProjection, RowProjection
from sglang_cp.weights.shards import layer_shards

pytest.importorskip("sglang")

QUANTIZATION = "sglang.srt.layers.quantization."
PREFIX = "model.layers.0.self_attn"
ROWS = 5
METHODS = {
    "none": "UnquantizedLinearMethod",
    "block-fp8": "Fp8LinearMethod",
    "quark-fp8": "QuarkLinearMethod",
    "mxfp4": "QuarkLinearMethod",
}
SIZES = (2, 4)


@pytest.fixture(autouse=True)
def _reference_kernels(monkeypatch):
    """What the platform puts in place for linear layers, for one test."""
    importers = [importlib.import_module(QUANTIZATION + name) for name in ("fp8_utils", "utils")]
    for replacement in REPLACEMENTS:
        target, substitute = replacement.target, replacement.substitute
        if not target.startswith((QUANTIZATION, "torch.nn.functional.")):
            continue
        path, _, name = target.rpartition(".")
        owner = pkgutil.resolve_name(path)
        if replacement.how is How.AROUND:
            substitute = functools.partialmethod(_around, substitute, getattr(owner, name))
        for module in (owner, *importers) if replacement.how is How.HOOK else (owner,):
            if module is owner or hasattr(module, name):
                monkeypatch.setattr(module, name, substitute, raising=False)


def _around(instance, substitute, original, *args, **kwargs):
    return substitute(original, instance, *args, **kwargs)


@pytest.fixture(autouse=True)
def _dtype_of_the_model():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(before)


@functools.cache
def checkpoint(attn_quant):
    """The first layer's q_b_proj and o_proj as a checkpoint stores them, and the model's configuration."""
    config = TinyConfig.stored_as(attn_quant, layers=1)
    specs = {spec.name: spec for spec in tensor_specs(config)}
    names = [f"{PREFIX}.{linear}.weight" for linear in ("q_b_proj", "o_proj")]
    tensors = {}
    for name in names:
        tensors |= stored(name, draw(specs[name], config), config)
    return tensors, config


def attention(attn_quant, size, rank):
    """Upstream's q_b_proj and o_proj as rank `rank` of `size` holds them, loaded and post-processed."""
    from sglang.srt.layers.linear import ColumnParallelLinear, RowParallelLinear
    from sglang.srt.layers.quantization import get_quantization_config
    from sglang.srt.runtime_context import get_parallel

    tensors, config = checkpoint(attn_quant)
    given = config.to_config_json().get("quantization_config")
    quant_config = None
    if given is not None:
        quant_config = get_quantization_config(given["quant_method"]).from_config(
            given | {"packed_modules_mapping": {}}
        )
    features = {
        "q_b_proj": (ColumnParallelLinear, config.q_lora_rank, config.heads * config.qk_head_dim),
        "o_proj": (RowParallelLinear, config.heads * config.v_head_dim, config.hidden),
    }
    linears = {}
    for name, (cls, inputs, outputs) in features.items():
        prefix = f"{PREFIX}.{name}"
        common = {"bias": False, "quant_config": quant_config, "prefix": prefix, "tp_rank": rank, "tp_size": size}
        with get_parallel().override(tp_size=size, tp_rank=rank):
            linear = cls(inputs, outputs, **common)
        for parameter_name, parameter in linear.named_parameters():
            parameter.weight_loader(parameter, tensors[f"{prefix}.{parameter_name}"])
        linear.quant_method.process_weights_after_loading(linear)
        linears[name] = linear
    return SimpleNamespace(**linears)


def ranks(attn_quant, size):
    return [attention(attn_quant, size, rank) for rank in range(size)]


def gathered(layers, module):
    """Parameter name -> [size, *shape], over the bytes that a source would copy."""
    by_rank = [{shard.name: shard for shard in layer_shards(layer)} for layer in layers]
    return {
        name.removeprefix(f"{module}."): shard.by_rank(torch.stack([shards[name].bytes() for shards in by_rank]))
        for name, shard in by_rank[0].items()
        if name.startswith(f"{module}.")
    }


def apply(linear, x):
    return linear.quant_method.apply(linear, x)


def inputs(features):
    """Rows of very different sizes, so that a scale which belongs to another row or group shows."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, features, generator=generator, dtype=torch.float32)
    return (x * torch.logspace(-2, 2, ROWS * features, dtype=torch.float32).view(ROWS, features)).bfloat16()


@pytest.mark.parametrize("attn_quant", METHODS)
def test_the_layers_are_quantized_as_the_checkpoint_says(attn_quant):
    layer = attention(attn_quant, 2, 0)
    assert type(layer.q_b_proj.quant_method).__name__ == type(layer.o_proj.quant_method).__name__ == METHODS[attn_quant]
    assert layer.o_proj.weight.dtype == {"none": torch.bfloat16, "mxfp4": torch.uint8}.get(
        attn_quant, torch.float8_e4m3fn
    )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("attn_quant", METHODS)
def test_a_column_projection_over_gathered_shards_equals_the_whole_one(attn_quant, size):
    whole, layers = attention(attn_quant, 1, 0).q_b_proj, ranks(attn_quant, size)
    x = inputs(whole.input_size)
    output, _ = ColumnProjection(layers[0].q_b_proj, gathered(layers, "q_b_proj"))(x)
    assert torch.equal(output, apply(whole, x))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("attn_quant", [name for name in METHODS if name != "quark-fp8"])
def test_o_proj_as_a_sum_over_shards_equals_the_whole_one(attn_quant, size):
    """Blocks and groups of activations end where ranks do."""
    whole, layers = attention(attn_quant, 1, 0).o_proj, ranks(attn_quant, size)
    x = inputs(whole.input_size)
    output, _ = RowProjection(layers[0].o_proj, gathered(layers, "o_proj"))(x)
    assert output.dtype is torch.float64
    assert torch.equal(output.bfloat16(), apply(whole, x).bfloat16())


@pytest.mark.parametrize("size", SIZES)
def test_o_proj_with_a_scale_for_each_token_equals_plain_tensor_parallelism_of_the_same_size(size):
    """A rank scales a token by the largest value of its own heads: plain SGLang's answer depends on the tp size."""
    whole, layers = attention("quark-fp8", 1, 0).o_proj, ranks("quark-fp8", size)
    x = inputs(whole.input_size)
    plain = sum(apply(layer.o_proj, part) for layer, part in zip(layers, x.chunk(size, dim=1), strict=True))
    output, _ = RowProjection(layers[0].o_proj, gathered(layers, "o_proj"))(x)
    assert torch.equal(output.bfloat16(), plain.bfloat16())
    error = (output - apply(whole, x)).norm() / apply(whole, x).norm()
    assert 1e-4 < error < 0.05


@pytest.mark.parametrize("attn_quant", METHODS)
def test_shards_in_another_order_are_another_answer(attn_quant):
    layers = ranks(attn_quant, 2)
    x = inputs(layers[0].o_proj.input_size)
    right, _ = RowProjection(layers[0].o_proj, gathered(layers, "o_proj"))(x)
    wrong, _ = RowProjection(layers[0].o_proj, gathered(layers[::-1], "o_proj"))(x)
    assert not torch.allclose(right, wrong, rtol=0.1)
