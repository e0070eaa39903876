"""What a tiny checkpoint looks like: its sizes, their validation, and the config.json they become."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from sglang_cp.errors import UsageError
from sglang_cp.tiny_checkpoint.formats import SHARD_STEPS, SIZES, AttnQuant, quantization_config
from sglang_cp.tiny_checkpoint.vocabulary import BOS_ID, EOS_ID, PAD_ID, VOCAB_SIZE

Architecture = Literal["glm", "deepseek-v32"]
Dtype = Literal["float32", "bfloat16"]

_LARGEST = 1 << 24
"""No checkpoint has a larger size; what is larger is a slip of the hand."""

# Fixed by SGLang's DSA kernels and KV pool: a latent of 512 + 64 values and an index key of 128 per token.
KV_LORA_RANK = 512
QK_ROPE_HEAD_DIM = 64
INDEX_HEAD_DIM = 128
# SGLang's top-k kernels select at most this many keys.
MAX_INDEX_TOPK = 2048

# GLM-5.2 indexes in layers 0, 1, 2 and then in every fourth (4, 3). Four layers would hardly share with that;
# so a tiny checkpoint indexes in layer 0 and then in every third: two layers share in a row, one indexes anew.
SHARE_FREQUENCY = 3
SHARE_OFFSET = 1

# model_type and class, as transformers and SGLang name them.
_NAMES: dict[Architecture, tuple[str, str]] = {
    "glm": ("glm_moe_dsa", "GlmMoeDsaForCausalLM"),
    "deepseek-v32": ("deepseek_v32", "DeepseekV32ForCausalLM"),
}


@dataclass(frozen=True)
class TinyConfig:
    """Sizes of a tiny DSA checkpoint: counts of layers, heads, experts, tokens, or features.

    Raises `UsageError` when made, if no server could serve the checkpoint.
    """

    arch: Architecture = "glm"
    layers: int = 4
    dense_layers: int = 1
    """Leading layers with a dense FFN; the others are mixtures of experts."""
    hidden: int = 128
    heads: int = 8
    q_lora_rank: int = 64
    qk_nope_head_dim: int = 32
    v_head_dim: int = 64
    """Unlike `qk_nope_head_dim`, as in GLM-5.2 (192 and 256): code that mixes them up must fail."""
    dense_intermediate: int = 256
    experts: int = 8
    experts_per_token: int = 2
    expert_intermediate: int = 64
    index_topk: int = 32
    """Keys that a query attends to; well below 100, so that sparsity acts on a prompt of 100 tokens."""
    index_heads: int = 16
    """With few heads many keys score exactly 0, because the ReLU of every head is shut: ties, which each rank may
    break differently. With 8 heads 2,500 tokens had about 20 rows with a tie at the top-k boundary, with 16 none."""
    index_share: bool = False
    """Let layers reuse the top-k of the layer before (GLM only); such layers have no indexer weights."""
    indexer_rope_interleave: bool = False
    """GLM-5.2 has it. transformers 5.12 ignores it and so agrees with SGLang only while it is off."""
    nextn: bool = False
    """Append a NextN (MTP) layer to draft with. Its drafts are often right: see `weights`."""
    max_positions: int = 16384
    dtype: Dtype = "bfloat16"
    """Type of the stored weights. `--dtype auto` of SGLang serves a float32 checkpoint in float16."""
    attn_quant: AttnQuant = "none"
    """Format of the attention's linear layers (see `formats`); `stored_as` chooses sizes that it can shard."""
    seed: int = 0

    def __post_init__(self) -> None:
        named = (("arch", get_args(Architecture)), ("dtype", get_args(Dtype)), ("attn_quant", get_args(AttnQuant)))
        for name, choices in named:
            value = getattr(self, name)
            _require(value in choices, f"{name} must be one of {', '.join(choices)}, but is {value!r}")
        self._require_multiples(1, ("layers", "experts_per_token", "index_topk", "index_heads", "max_positions"))
        self._require_multiples(2, ("heads",), "so that at least 2 tensor-parallel ranks can share them")
        self._require_multiples(
            8, ("dense_intermediate", "expert_intermediate"), "so that up to 8 tensor-parallel ranks can share it"
        )
        self._require_multiples(
            16, ("hidden", "q_lora_rank", "qk_nope_head_dim", "v_head_dim"), "the step in which kernels read it"
        )
        _require(self.seed >= 0, f"seed must not be negative, but is {self.seed}")
        _require(
            0 <= self.dense_layers <= self.layers,
            f"dense_layers must be between 0 and layers ({self.layers}), but is {self.dense_layers}",
        )
        _require(
            self.experts >= 2,
            f"experts must be at least 2, because routers rank groups by their two best, but is {self.experts}",
        )
        _require(
            self.experts_per_token <= self.experts,
            f"experts_per_token ({self.experts_per_token}) must not exceed experts ({self.experts})",
        )
        _require(
            self.index_topk <= MAX_INDEX_TOPK,
            f"index_topk must be at most {MAX_INDEX_TOPK}, as in SGLang's kernels, but is {self.index_topk}",
        )
        if self.index_share:
            _require(self.arch == "glm", "index_share needs arch glm: DeepSeek V3.2 indexes in every layer")
            _require(
                self.layers >= 2,
                f"index_share needs at least 2 layers, as the first has nothing to reuse, but there is {self.layers}",
            )
        if self.nextn:
            _require(self.attn_quant == "none", f"nextn needs attn_quant none, but it is {self.attn_quant}")
            _require(self.layers >= 2, "nextn needs at least 2 layers: SGLang takes layer 0 of one for the NextN layer")
        if self.attn_quant != "none":
            _require(self.dtype == "bfloat16", f"attn_quant {self.attn_quant} needs dtype bfloat16, as SGLang does")
            step = SHARD_STEPS[self.attn_quant][1]
            self._require_multiples(step, ("hidden", "q_lora_rank"), f"a block or group of {self.attn_quant}")
            _require(
                self._has_whole_shards(2),
                f"heads ({self.heads}), qk_nope_head_dim ({self.qk_nope_head_dim}), v_head_dim ({self.v_head_dim}) and "
                f"expert_intermediate ({self.expert_intermediate}) give 2 ranks no whole blocks of {self.attn_quant}: "
                "take larger ones",
            )

    @classmethod
    def stored_as(cls, attn_quant: AttnQuant, **sizes: Any) -> "TinyConfig":
        """A configuration of that format, with sizes that it can shard where `sizes` does not say otherwise."""
        return cls(**{"attn_quant": attn_quant, **SIZES.get(attn_quant, {}), **sizes})

    def _require_multiples(self, step: int, names: tuple[str, ...], reason: str = "") -> None:
        wanted = "at least 1" if step == 1 else f"a positive multiple of {step}, {reason},"
        for name in names:
            value = getattr(self, name)
            _require(value > 0 and value % step == 0, f"{name} must be {wanted} but is {value}")
            _require(value <= _LARGEST, f"{name} must be at most {_LARGEST:,} but is {value:,}")

    @property
    def qk_head_dim(self) -> int:
        """Features of a query or key head, those without and those with rotary embedding."""
        return self.qk_nope_head_dim + QK_ROPE_HEAD_DIM

    @property
    def architecture(self) -> str:
        """The model class's name, such as `GlmMoeDsaForCausalLM`."""
        return _NAMES[self.arch][1]

    @property
    def tensor_parallel_sizes(self) -> list[int]:
        """Which of 1, 2, 4 and 8 `--tp-size` may be: SGLang splits heads evenly and wants an expert per rank.

        A quantized shard consists of whole blocks besides.
        """
        return [
            size
            for size in (1, 2, 4, 8)
            if self.heads % size == 0 and size <= self.experts and self._has_whole_shards(size)
        ]

    def _has_whole_shards(self, size: int) -> bool:
        """Whether each of `size` ranks gets whole blocks of q_b_proj, kv_b_proj, experts and o_proj."""
        output_step, input_step = SHARD_STEPS[self.attn_quant]
        head = (self.qk_head_dim, self.qk_nope_head_dim + self.v_head_dim)
        outputs = (*(self.heads * width for width in head), self.expert_intermediate)
        inputs = self.heads * self.v_head_dim
        return inputs % (size * input_step) == 0 and not any(width % (size * output_step) for width in outputs)

    def shares_index(self, layer: int) -> bool:
        """Whether a layer reuses the top-k of the layer before instead of indexing."""
        return self.index_share and max(layer - SHARE_OFFSET + 1, 0) % SHARE_FREQUENCY != 0

    def is_dense(self, layer: int) -> bool:
        """Whether a layer's FFN is dense rather than a mixture of experts."""
        return layer < self.dense_layers

    def to_config_json(self) -> dict[str, Any]:
        """The contents of config.json.

        Some keys say the same thing twice, because transformers reads one and SGLang the other:
        `mlp_layer_types`, and `first_k_dense_replace` with `moe_layer_freq`; `indexer_types`, and
        `index_topk_freq` with `index_skip_topk_offset`. SGLang also needs `topk_method` and `scoring_func`, which
        are constants in transformers.
        """
        model_type, architecture = _NAMES[self.arch]
        config: dict[str, Any] = {
            "architectures": [architecture],
            "model_type": model_type,
            "dtype": self.dtype,
            "vocab_size": VOCAB_SIZE,
            "bos_token_id": BOS_ID,
            "eos_token_id": EOS_ID,
            "pad_token_id": PAD_ID,
            "max_position_embeddings": self.max_positions,
            "tie_word_embeddings": False,
            "num_hidden_layers": self.layers,
            "num_nextn_predict_layers": int(self.nextn),
            "hidden_size": self.hidden,
            "hidden_act": "silu",
            # transformers norms both latents with 1e-6, whatever this says; SGLang with this.
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "attention_bias": False,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "q_lora_rank": self.q_lora_rank,
            "kv_lora_rank": KV_LORA_RANK,
            "qk_nope_head_dim": self.qk_nope_head_dim,
            "qk_rope_head_dim": QK_ROPE_HEAD_DIM,
            "qk_head_dim": self.qk_head_dim,
            "v_head_dim": self.v_head_dim,
            "index_n_heads": self.index_heads,
            "index_head_dim": INDEX_HEAD_DIM,
            "index_topk": self.index_topk,
            "indexer_rope_interleave": self.indexer_rope_interleave,
            "intermediate_size": self.dense_intermediate,
            "first_k_dense_replace": self.dense_layers,
            "moe_layer_freq": 1,
            "mlp_layer_types": ["dense" if self.is_dense(i) else "sparse" for i in range(self.layers)],
            "moe_intermediate_size": self.expert_intermediate,
            "n_routed_experts": self.experts,
            "num_experts_per_tok": self.experts_per_token,
            "n_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
        }
        if self.arch == "glm":
            config |= {
                "indexer_types": ["shared" if self.shares_index(i) else "full" for i in range(self.layers)],
                "index_topk_freq": SHARE_FREQUENCY if self.index_share else 1,
                "index_skip_topk_offset": SHARE_OFFSET,
            }
            if self.nextn and self.index_share:
                # As in GLM-5.2: draft steps reuse the top-k of the last accepted token's row.
                config["index_share_for_mtp_iteration"] = True
        else:
            # transformers' DeepSeek V3.2 sizes its experts by this key.
            config["num_experts"] = self.experts
        quantization = quantization_config(self.attn_quant, self.arch, self.layers)
        return config if quantization is None else config | {"quantization_config": quantization}


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)
