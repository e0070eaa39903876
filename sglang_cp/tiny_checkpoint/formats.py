"""Formats in which a tiny checkpoint can store its attention weights, named and laid out as published ones have them.

Only linear layers of the attention are quantized: they are what context parallelism gathers. The feed-forward layers
stay as they are, through the list of excluded modules that every format has, which keeps checkpoints small and the CPU
platform free of quantized mixture-of-experts kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

AttnQuant = Literal["none", "block-fp8", "quark-fp8", "mxfp4"]

Scheme = Literal["block", "channel", "tensor", "mxfp4"]
"""How one weight is scaled: 128 x 128 blocks, output channels, the whole tensor, or 32 inputs of one output."""

BLOCK = 128
GROUP = 32

_LATENT = ("q_a_proj", "kv_a_proj_with_mqa", "q_b_proj", "o_proj")
_INDEXER = ("wq_b", "wk")

SCHEMES: Mapping[AttnQuant, Mapping[str, Scheme]] = {
    "none": {},
    # DeepSeek V3.2 and GLM-5.2-FP8.
    "block-fp8": dict.fromkeys((*_LATENT, "kv_b_proj", *_INDEXER), "block"),
    # AMD Quark's "ptpc": a scale for each output channel, activations scaled for each token. kv_b_proj has one scale
    # in all, because SGLang's post_load_weights multiplies Quark's flat channel scales along the wrong dimension.
    "quark-fp8": {**dict.fromkeys((*_LATENT, *_INDEXER), "channel"), "kv_b_proj": "tensor"},
    # Quark's w4a4. kv_b_proj stays unquantized: SGLang unpacks it for DeepseekV3ForCausalLM only.
    "mxfp4": dict.fromkeys(_LATENT, "mxfp4"),
}
"""Linear layers that a format quantizes, by the last part of their name."""

SHARD_STEPS: Mapping[AttnQuant, tuple[int, int]] = {
    "none": (1, 1),
    "block-fp8": (BLOCK, BLOCK),
    "quark-fp8": (1, 1),
    "mxfp4": (1, GROUP),
}
"""What divides a rank's output and input features, so that its shard has whole blocks."""

SIZES: Mapping[AttnQuant, Mapping[str, int]] = {
    "none": {},
    # With 8 heads a rank's shards are whole blocks at tp 2 and 4. SGLang wants whole blocks of experts too, whether
    # they are quantized or not.
    "block-fp8": {"q_lora_rank": 128, "qk_nope_head_dim": 64, "v_head_dim": 128, "expert_intermediate": 512},
    "quark-fp8": {},
    "mxfp4": {},
}
"""Sizes, other than a tiny checkpoint's own, that a format needs."""


def scheme_of(attn_quant: AttnQuant, tensor: str) -> Scheme | None:
    """How a format stores the tensor of that name in a checkpoint; None for one that it leaves as it is."""
    module, _, parameter = tensor.rpartition(".")
    return SCHEMES[attn_quant].get(module.rpartition(".")[2]) if parameter == "weight" else None


def quantization_config(attn_quant: AttnQuant, arch: str, layers: int) -> dict[str, Any] | None:
    """config.json's `quantization_config`; None for an unquantized checkpoint."""
    if attn_quant == "none":
        return None
    if attn_quant == "block-fp8":
        config: dict[str, Any] = {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
            "modules_to_not_convert": ["lm_head", *(f"model.layers.{layer}.mlp" for layer in range(layers))],
        }
        return config | {"scale_fmt": "ue8m0"} if rounds_scales(attn_quant, arch) else config
    if attn_quant == "mxfp4":
        return _quark(_MXFP4, ["re:.*\\.kv_b_proj$", "re:.*\\.indexer\\..*"], {})
    return _quark(_CHANNEL_FP8, ["re:.*\\.indexer\\.weights_proj$"], {"*kv_b_proj": _TENSOR_FP8})


def rounds_scales(attn_quant: AttnQuant, arch: str) -> bool:
    """Whether block scales are powers of two: in DeepSeek V3.2's checkpoint they are, in GLM-5.2-FP8 not."""
    return attn_quant == "block-fp8" and arch == "deepseek-v32"


def _spec(dtype: str, qscheme: str, *, is_dynamic: bool, **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "qscheme": qscheme, "is_dynamic": is_dynamic, "round_method": "half_even", **more}


def _layer(weight: dict[str, Any], input_tensors: dict[str, Any]) -> dict[str, Any]:
    return {"weight": weight, "input_tensors": input_tensors, "output_tensors": None, "bias": None}


_GROUPS = {"ch_axis": -1, "group_size": GROUP, "scale_format": "e8m0", "scale_calculation_mode": "even"}
_MXFP4 = _layer(
    _spec("fp4", "per_group", is_dynamic=False, **_GROUPS), _spec("fp4", "per_group", is_dynamic=True, **_GROUPS)
)
_CHANNEL_FP8 = _layer(
    _spec("fp8_e4m3", "per_channel", is_dynamic=False, ch_axis=0, symmetric=True),
    _spec("fp8_e4m3", "per_channel", is_dynamic=True, ch_axis=1, symmetric=True),
)
_TENSOR_FP8 = _layer(
    _spec("fp8_e4m3", "per_tensor", is_dynamic=False, symmetric=True),
    _spec("fp8_e4m3", "per_tensor", is_dynamic=True, symmetric=True),
)


def _quark(everywhere: dict[str, Any], exclude: list[str], by_name: dict[str, Any]) -> dict[str, Any]:
    """`everywhere` but in the feed-forward layers, the output head, what `exclude` matches, and `by_name`'s layers."""
    return {
        "quant_method": "quark",
        "quant_mode": "eager_mode",
        "exclude": ["lm_head", "re:.*\\.mlp(\\..*)?$", *exclude],
        "export": {"kv_cache_group": [], "pack_method": "reorder", "weight_format": "real_quantized"},
        "global_quant_config": everywhere,
        "layer_quant_config": by_name,
        "layer_type_quant_config": {},
    }
