"""Bytes of weights on one rank, by component, as SGLang's DeepSeek V2 family holds them after loading.

Source: models/deepseek_v2.py, models/deepseek_nextn.py, layers/attention/dsa/dsa_indexer.py and
models/deepseek_common/deepseek_weight_loader.py of SGLang 0.5.15.post1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from sglang_cp.doctor.model_config import Geometry
from sglang_cp.doctor.quantization import SIXTEEN_BIT, FormatOf

_VOCAB_STEP = 64
"""SGLang pads the vocabulary to a multiple of this."""
_ROTARY_MARGIN_TOKENS, _ROTARY_STEP_TOKENS = 256, 128
"""SGLang makes the rotary tables longer than the context, in steps (reserve_rope_cache_for_long_sequences)."""

Component = tuple[str, int]
"""Its name and its bytes on one rank."""


@dataclass(frozen=True)
class Platform:
    """How a platform's SGLang holds what a checkpoint does not decide.

    Attributes:
        rotary_bytes: per value of the rotary tables.
        key_norm_bytes: per value of the norm of index keys.
        router_bias_bytes: per value of a quantized model's router bias.
        absorbs_block_fp8: kv_b in FP8 blocks is absorbed as FP8 with one scale, not dequantized to BF16.
        fuses_index_projections: wk and weights_proj are one unquantized matrix where the rotary style allows it.
        scales_fp8_latents: FP8 latents are stored with scales and BF16 rotary values.
    """

    rotary_bytes: int
    key_norm_bytes: int
    router_bias_bytes: int
    absorbs_block_fp8: bool
    fuses_index_projections: bool
    scales_fp8_latents: bool


CUDA = Platform(
    rotary_bytes=4,
    key_norm_bytes=4,
    router_bias_bytes=4,
    absorbs_block_fp8=False,
    fuses_index_projections=True,
    scales_fp8_latents=True,
)
ROCM = Platform(
    rotary_bytes=2,
    key_norm_bytes=2,
    router_bias_bytes=2,
    absorbs_block_fp8=True,
    fuses_index_projections=False,
    scales_fp8_latents=False,
)
"""With AITER, as the DSA backends that take BF16 or raw FP8 latents need it."""


@dataclass(frozen=True)
class Ranks:
    """Over how many ranks each kind of weight is sharded; 1 means that every rank holds all of it.

    Attributes:
        attention: q_b, kv_b, o and the absorbed kv_b.
        dense: FFNs of the dense layers.
        rest: experts, embedding and LM head.
    """

    attention: int
    dense: int
    rest: int

    @classmethod
    def plain_tp(cls, tp_size: int) -> Ranks:
        return cls(tp_size, tp_size, tp_size)

    @classmethod
    def static_cp(cls, tp_size: int) -> Ranks:
        """``--cp-attn-weights replicated``: attention TP 1, and upstream forces --moe-dense-tp-size 1 as well."""
        return cls(1, 1, tp_size)


@dataclass(frozen=True)
class WeightMemory:
    """Sizes the weights of one model.

    Attributes:
        geometry: of the model.
        format_of: its quantization.
        platform: that serves it.
    """

    geometry: Geometry
    format_of: FormatOf
    platform: Platform = CUDA

    def target(self, ranks: Ranks) -> dict[str, int]:
        """The target model, by component."""
        g = self.geometry
        parts: Counter[str] = Counter()
        for layer in range(g.num_hidden_layers):
            parts.update(_summed(self._layer(f"model.layers.{layer}", g.is_sparse(layer), ranks)))
        vocab = _round_up(g.vocab_size, _VOCAB_STEP) // ranks.rest
        tables = 1 if g.tie_word_embeddings else 2
        parts["embedding and LM head"] = tables * SIXTEEN_BIT.num_bytes(vocab, g.hidden_size)
        parts["norms"] += SIXTEEN_BIT.num_bytes(1, g.hidden_size)
        parts["rotary cache"] = self._rotary_cache()
        return dict(parts)

    def draft(self, ranks: Ranks) -> dict[str, int]:
        """The NextN layer as an EAGLE draft model; it shares the target's embedding, LM head and rotary cache."""
        g = self.geometry
        prefix = f"model.layers.{g.num_hidden_layers}"
        parts = _summed(self._layer(prefix, True, ranks))
        parts["projection of the input"] = self.format_of(f"{prefix}.eh_proj").num_bytes(
            g.hidden_size, 2 * g.hidden_size
        )
        parts["norms"] += SIXTEEN_BIT.num_bytes(3, g.hidden_size)
        return dict(parts)

    def gather_buffers(self, tp_size: int) -> int:
        """Bytes of the two buffers for one layer's gathered shards (sglang_cp.weights.buffers), without alignment."""
        return 2 * max(
            self._gathered(f"model.layers.{layer}.self_attn", tp_size)
            for layer in range(self.geometry.num_hidden_layers)
        )

    def _layer(self, prefix: str, sparse: bool, ranks: Ranks) -> Iterator[Component]:
        g = self.geometry
        yield from self._attention(f"{prefix}.self_attn", ranks.attention)
        yield from self._indexer(f"{prefix}.self_attn.indexer")
        yield "norms", SIXTEEN_BIT.num_bytes(2, g.hidden_size)
        if not sparse:
            yield "dense FFN", self._ffn(f"{prefix}.mlp", g.intermediate_size // ranks.dense)
            return
        quantized = self.format_of(f"{prefix}.mlp.experts.0.gate_proj") != SIXTEEN_BIT
        bias_bytes = self.platform.router_bias_bytes if quantized else 4
        yield "routers", SIXTEEN_BIT.num_bytes(g.n_routed_experts, g.hidden_size) + bias_bytes * g.n_routed_experts
        width = g.moe_intermediate_size // ranks.rest
        yield "routed experts", g.n_routed_experts * self._ffn(f"{prefix}.mlp.experts.0", width)
        yield "shared experts", g.n_shared_experts * self._ffn(f"{prefix}.mlp.shared_experts", width)

    def _ffn(self, prefix: str, width: int) -> int:
        hidden = self.geometry.hidden_size
        return sum(self.format_of(f"{prefix}.{name}").num_bytes(width, hidden) for name in ("gate_proj", "up_proj")) + (
            self.format_of(f"{prefix}.down_proj").num_bytes(hidden, width)
        )

    def _attention(self, prefix: str, ranks: int) -> Iterator[Component]:
        g = self.geometry
        heads = g.num_attention_heads // ranks
        latent = g.kv_lora_rank + g.qk_rope_head_dim
        for name, rows, columns in (
            ("q_a_proj", g.q_lora_rank, g.hidden_size),
            ("kv_a_proj_with_mqa", latent, g.hidden_size),
            *self._sharded(heads),
            ("kv_b_proj", heads * (g.qk_nope_head_dim + g.v_head_dim), g.kv_lora_rank),
        ):
            yield "attention projections", self.format_of(f"{prefix}.{name}").num_bytes(rows, columns)
        yield "absorbed kv_b", sum(self._absorbed(prefix, heads))
        yield "norms", SIXTEEN_BIT.num_bytes(1, g.q_lora_rank + g.kv_lora_rank)

    def _sharded(self, heads: int) -> tuple[tuple[str, int, int], ...]:
        """The linear layers whose shards are gathered: name, rows and columns of ``heads`` heads."""
        g = self.geometry
        return (
            ("q_b_proj", heads * (g.qk_nope_head_dim + g.qk_rope_head_dim), g.q_lora_rank),
            ("o_proj", g.hidden_size, heads * g.v_head_dim),
        )

    def _absorbed(self, prefix: str, heads: int) -> tuple[int, int]:
        """w_kc and w_vc: copies of kv_b's halves, which stays loaded beside them for dense attention."""
        g = self.geometry
        form = self.format_of(f"{prefix}.kv_b_proj")
        as_fp8 = form.bits == 8 and (form.block[1] is None or self.platform.absorbs_block_fp8)
        width_bytes = 1 if as_fp8 else 2
        return (
            heads * g.qk_nope_head_dim * g.kv_lora_rank * width_bytes,
            heads * g.v_head_dim * g.kv_lora_rank * width_bytes,
        )

    def _gathered(self, prefix: str, tp_size: int) -> int:
        heads = self.geometry.num_attention_heads // tp_size
        tensors = list(self._absorbed(prefix, heads))
        for name, rows, columns in self._sharded(heads):
            tensors += self.format_of(f"{prefix}.{name}").parts(rows, columns)
        return tp_size * sum(tensors)

    def _indexer(self, prefix: str) -> Iterator[Component]:
        """Made in every layer, also in those that share another layer's top-k (IndexShare) and load no weights."""
        g = self.geometry
        fused = self.platform.fuses_index_projections and g.indexer_rope_interleave
        wk = SIXTEEN_BIT if fused else self.format_of(f"{prefix}.wk")
        yield (
            "indexers",
            self.format_of(f"{prefix}.wq_b").num_bytes(g.index_n_heads * g.index_head_dim, g.q_lora_rank)
            + wk.num_bytes(g.index_head_dim, g.hidden_size)
            + SIXTEEN_BIT.num_bytes(g.index_n_heads, g.hidden_size),
        )
        yield "norms", 2 * g.index_head_dim * self.platform.key_norm_bytes  # weight and bias of k_norm

    def _rotary_cache(self) -> int:
        """One table of cosines and sines per style, shared by all layers."""
        g = self.geometry
        tables = len({g.rope_interleave, g.indexer_rope_interleave})
        rows = _round_up(g.max_position_embeddings + _ROTARY_MARGIN_TOKENS, _ROTARY_STEP_TOKENS)
        return tables * rows * g.qk_rope_head_dim * self.platform.rotary_bytes


def _summed(components: Iterator[Component]) -> Counter[str]:
    parts: Counter[str] = Counter()
    for name, num_bytes in components:
        parts[name] += num_bytes
    return parts


def _round_up(count: int, step: int) -> int:
    return -(-count // step) * step
