"""Random weights that behave like a model's: sharp attention, clear logits, every part of a layer audible.

A gain is the standard deviation of a projection's output for an input of unit variance; weights are drawn with
gain / sqrt(inputs). The gains were chosen for what the tests measure: attention is neither uniform nor on one
key, so that a lost or wrong key shows in the logits; attention and FFN each move the residual by about its own
size; the best logit leads the second by far more than rounding.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from sglang_cp.tiny_checkpoint.config import INDEX_HEAD_DIM, KV_LORA_RANK, QK_ROPE_HEAD_DIM, TinyConfig
from sglang_cp.tiny_checkpoint.vocabulary import GENERATED_IDS, VOCAB_SIZE

# Query-key products of unit-variance heads: the standard deviation of an attention logit.
ATTENTION_GAIN = 1.6
# Averaging over the attended keys shrinks the values, which the output projection makes up for.
OUTPUT_GAIN = 3.0
DOWN_GAIN = 1.5
EXPERT_DOWN_GAIN = 0.7
LOGIT_GAIN = 3.0
# A random layer cannot foresee a random model. So where there is a NextN layer the embeddings are large: the next
# token then hangs mostly, though not only, on the present one, which the NextN layer sees too and passes on. What it
# makes of the target's hidden states and of the prompt is quieter, but loud enough to change a draft: drafts are often
# right, and wrong or misplaced hidden states give other drafts.
NEXTN_EMBED_GAIN = 20.0
NEXTN_HIDDEN_GAIN = 5.0
NEXTN_OUTPUT_GAIN = 9.0
NORM_SPREAD = 0.1
ROUTER_BIAS_SPREAD = 0.05


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of the checkpoint: normal values of a mean and a standard deviation."""

    name: str
    shape: tuple[int, ...]
    std: float
    mean: float = 0.0
    dtype: torch.dtype | None = None
    """None: the checkpoint's own type."""


def tensor_specs(config: TinyConfig) -> Iterator[TensorSpec]:
    """All tensors of a checkpoint, by the names of GLM-5's and DeepSeek V3.2's published checkpoints."""
    embed_std = NEXTN_EMBED_GAIN if config.nextn else 1.0
    yield TensorSpec("model.embed_tokens.weight", (VOCAB_SIZE, config.hidden), std=embed_std)
    for layer in range(config.layers):
        yield from _layer(layer, config, indexes=not config.shares_index(layer), dense=config.is_dense(layer))
    if config.nextn:
        yield from _nextn(config)
    yield _norm("model.norm", config.hidden)
    yield _linear("lm_head", config.hidden, VOCAB_SIZE, LOGIT_GAIN)


def draw(spec: TensorSpec, config: TinyConfig) -> torch.Tensor:
    """The tensor of a spec. Its values depend on the spec and the seed only, not on the rest of the checkpoint."""
    digest = hashlib.sha256(f"{config.seed}/{spec.name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    values = torch.randn(spec.shape, generator=generator) * spec.std + spec.mean
    if spec.name == "lm_head.weight":
        never = torch.ones(VOCAB_SIZE, dtype=torch.bool)
        never[list(GENERATED_IDS)] = False
        # A logit of 0 never wins against the best of the others.
        values[never] = 0.0
    if spec.name.endswith(".eh_proj.weight"):
        values[:, : config.hidden] = NEXTN_EMBED_GAIN * torch.eye(config.hidden)
    return values.to(spec.dtype or getattr(torch, config.dtype))


def _linear(name: str, inputs: int, outputs: int, gain: float = 1.0, dtype: torch.dtype | None = None) -> TensorSpec:
    return TensorSpec(f"{name}.weight", (outputs, inputs), std=gain / inputs**0.5, dtype=dtype)


def _norm(name: str, size: int) -> TensorSpec:
    # Not exactly one: a norm that is skipped or applied twice must show.
    return TensorSpec(f"{name}.weight", (size,), std=NORM_SPREAD, mean=1.0)


def _layer(
    layer: int, config: TinyConfig, *, indexes: bool, dense: bool, output_gain: float = OUTPUT_GAIN
) -> Iterator[TensorSpec]:
    prefix = f"model.layers.{layer}"
    yield _norm(f"{prefix}.input_layernorm", config.hidden)
    yield from _attention(f"{prefix}.self_attn", config, output_gain)
    if indexes:
        yield from _indexer(f"{prefix}.self_attn.indexer", config)
    yield _norm(f"{prefix}.post_attention_layernorm", config.hidden)
    if dense:
        yield from _ffn(f"{prefix}.mlp", config.hidden, config.dense_intermediate, DOWN_GAIN)
    else:
        yield from _mixture(f"{prefix}.mlp", config)


def _nextn(config: TinyConfig) -> Iterator[TensorSpec]:
    """The layer after the last, whose inputs are the next token's embedding and the target's hidden state."""
    prefix = f"model.layers.{config.layers}"
    yield _norm(f"{prefix}.enorm", config.hidden)
    yield _norm(f"{prefix}.hnorm", config.hidden)
    std = NEXTN_HIDDEN_GAIN / config.hidden**0.5
    yield TensorSpec(f"{prefix}.eh_proj.weight", (config.hidden, 2 * config.hidden), std)
    yield from _layer(config.layers, config, indexes=True, dense=False, output_gain=NEXTN_OUTPUT_GAIN)
    yield _norm(f"{prefix}.shared_head.norm", config.hidden)


def _attention(prefix: str, config: TinyConfig, output_gain: float) -> Iterator[TensorSpec]:
    yield _linear(f"{prefix}.q_a_proj", config.hidden, config.q_lora_rank)
    yield _norm(f"{prefix}.q_a_layernorm", config.q_lora_rank)
    yield _linear(f"{prefix}.q_b_proj", config.q_lora_rank, config.heads * config.qk_head_dim, ATTENTION_GAIN)
    yield _linear(f"{prefix}.kv_a_proj_with_mqa", config.hidden, KV_LORA_RANK + QK_ROPE_HEAD_DIM)
    yield _norm(f"{prefix}.kv_a_layernorm", KV_LORA_RANK)
    key_and_value = config.heads * (config.qk_nope_head_dim + config.v_head_dim)
    yield _linear(f"{prefix}.kv_b_proj", KV_LORA_RANK, key_and_value)
    yield _linear(f"{prefix}.o_proj", config.heads * config.v_head_dim, config.hidden, output_gain)


def _indexer(prefix: str, config: TinyConfig) -> Iterator[TensorSpec]:
    yield _linear(f"{prefix}.wq_b", config.q_lora_rank, config.index_heads * INDEX_HEAD_DIM)
    yield _linear(f"{prefix}.wk", config.hidden, INDEX_HEAD_DIM)
    yield _norm(f"{prefix}.k_norm", INDEX_HEAD_DIM)
    yield TensorSpec(f"{prefix}.k_norm.bias", (INDEX_HEAD_DIM,), std=NORM_SPREAD)
    # SGLang holds this one in bfloat16 whatever the model's type: stored so, all loaders agree.
    yield _linear(f"{prefix}.weights_proj", config.hidden, config.index_heads, dtype=torch.bfloat16)


def _ffn(prefix: str, hidden: int, intermediate: int, down_gain: float) -> Iterator[TensorSpec]:
    yield _linear(f"{prefix}.gate_proj", hidden, intermediate)
    yield _linear(f"{prefix}.up_proj", hidden, intermediate)
    yield _linear(f"{prefix}.down_proj", intermediate, hidden, down_gain)


def _mixture(prefix: str, config: TinyConfig) -> Iterator[TensorSpec]:
    yield _linear(f"{prefix}.gate", config.hidden, config.experts)
    yield TensorSpec(
        f"{prefix}.gate.e_score_correction_bias",
        (config.experts,),
        std=ROUTER_BIAS_SPREAD,
        dtype=torch.float32,
    )
    for expert in range(config.experts):
        yield from _ffn(f"{prefix}.experts.{expert}", config.hidden, config.expert_intermediate, EXPERT_DOWN_GAIN)
    yield from _ffn(f"{prefix}.shared_experts", config.hidden, config.expert_intermediate, DOWN_GAIN)
