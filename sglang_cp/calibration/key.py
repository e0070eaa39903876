"""What the times of a server depend on, as the key of its calibration."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from sglang_cp.cost.calibration import CalibrationKey

GEOMETRY = (
    "num_hidden_layers",
    "first_k_dense_replace",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "index_n_heads",
    "index_head_dim",
    "index_topk",
    "index_topk_freq",
    "n_routed_experts",
    "n_shared_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
)
"""Names in config.json that size an extend's work."""


def calibration_key(
    config: Any,
    *,
    device: str,
    dtype: str,
    kv_cache_dtype: str,
    tp: int,
    shard_source: str,
    hidden_states_kept: bool = False,
) -> CalibrationKey:
    """The key of a server.

    Args:
        config: the model's Hugging Face config.
        device: its name.
        dtype: of weights and activations, as torch names it.
        kv_cache_dtype: of the KV pool, as torch names it.
        tp: ranks.
        shard_source: where CP extends get weights from.
        hidden_states_kept: whether extends keep those of all rows, for a draft model.
    """
    quantization = getattr(config, "quantization_config", None) or {}
    model: dict[str, str | int] = {
        "architecture": config.architectures[0],
        "quantization": str(quantization.get("quant_method", "none")),
        **{name: value for name in GEOMETRY if isinstance(value := getattr(config, name, None), int)},
    }
    return CalibrationKey(
        device=device,
        model=model,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        tp=tp,
        shard_source=shard_source,
        hidden_states_kept=hidden_states_kept,
        versions={name: version(name) for name in ("sglang", "sglang-cp", "torch")},
    )
