"""The geometry of a DSA model, from its config.json alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from sglang_cp.errors import UsageError

_IMPLAUSIBLE = 1_000_000
"""No model has so many layers, heads, or features of an expert."""


@dataclass(frozen=True)
class Geometry:
    """Sizes of a DSA model with latent attention and a mixture of experts, by config.json's own names.

    Counts of features, heads, layers, experts or tokens. What has a default may be absent, with SGLang's meaning.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    index_n_heads: int
    index_head_dim: int
    intermediate_size: int
    first_k_dense_replace: int
    n_routed_experts: int
    moe_intermediate_size: int
    max_position_embeddings: int
    moe_layer_freq: int = 1
    n_shared_experts: int = 0
    num_nextn_predict_layers: int = 0
    tie_word_embeddings: bool = False
    rope_interleave: bool = True
    indexer_rope_interleave: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Geometry:
        """Raises UsageError that names what a DSA model has and this config lacks, or what is not a count."""
        missing = [field.name for field in fields(cls) if field.default is MISSING and config.get(field.name) is None]
        if missing:
            raise UsageError(f"The config is not that of a DSA model: it lacks {', '.join(missing)}.")
        values = {field.name: config[field.name] for field in fields(cls) if config.get(field.name) is not None}
        if wrong := [name for name, value in values.items() if not isinstance(value, int) or value < 0]:
            raise UsageError(f"The config cannot be used: {', '.join(wrong)} must be a count.")
        return cls(**values)

    def is_sparse(self, layer: int) -> bool:
        """Whether a layer's FFN is a mixture of experts."""
        return layer >= self.first_k_dense_replace and layer % self.moe_layer_freq == 0

    def require_shardable(self, tp_size: int) -> None:
        """Raise UsageError if tensor parallelism over ``tp_size`` ranks cannot divide the model evenly."""
        sharded = ("num_attention_heads", "intermediate_size", "moe_intermediate_size")
        if uneven := [f"{name} {getattr(self, name)}" for name in sharded if getattr(self, name) % tp_size]:
            raise UsageError(f"--tp-size {tp_size} does not divide {', '.join(uneven)}: use one that does.")


def read_config(directory: Path) -> dict[str, Any]:
    """The config.json of a model directory. Raises UsageError if there is none that can be read."""
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}); --model-path names a model directory.") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON ({error}); fetch the model again.") from error
    if not isinstance(config, dict):
        raise UsageError(f"{path} holds no JSON object; fetch the model again.")
    if wrong := _wrong_types(config):
        raise UsageError(f"{path} cannot be used ({wrong}); fetch the model again.")
    return config


def _wrong_types(config: Mapping[str, Any]) -> str | None:
    """What no loader could read, of the entries that every part of the doctor relies on."""
    for name in ("num_attention_heads", "num_hidden_layers", "moe_intermediate_size"):
        if name in config and (type(config[name]) is not int or not 0 < config[name] < _IMPLAUSIBLE):
            return f"{name} is no plausible count"
    if not isinstance(config.get("architectures") or [], list):
        return "architectures is no list"
    quantization = config.get("quantization_config")
    if quantization is not None and not isinstance(quantization, dict):
        return "quantization_config is no object"
    block = (quantization or {}).get("weight_block_size")
    if block is not None and not (
        isinstance(block, list) and len(block) == 2 and all(type(size) is int and size > 0 for size in block)
    ):
        return "weight_block_size is no pair of sizes"
    return None
