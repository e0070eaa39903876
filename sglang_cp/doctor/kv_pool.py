"""Tokens that SGLang's DSA KV pool holds, and the bytes that it then allocates.

Source: model_executor/pool_configurator.py (DefaultPoolConfigurator), model_executor/model_runner_kv_cache_mixin.py
(_profile_available_bytes) and mem_cache/memory_pool.py (DSATokenToKVPool) of SGLang 0.5.15.post1.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglang_cp.doctor.model_config import Geometry

KV_ITEM_BYTES = {"bfloat16": 2, "fp8_e4m3": 1}
"""Bytes per latent value by --kv-cache-dtype."""
PAGE_TOKENS = 64
"""SGLang's page size for DSA models, except on ROCm without AITER's paged scoring (1)."""
_INDEX_SCALE_BLOCK = 128
_FP8_LATENT_SCALE_BLOCK = 128


@dataclass(frozen=True)
class KVPool:
    """The pool of one rank, which holds every token of a sequence: target layers and draft layers alike.

    Attributes:
        geometry: of the model.
        kv_cache_dtype: a key of KV_ITEM_BYTES.
        draft_layers: layers of the draft model, whose pool has as many tokens as the target's.
        scales_fp8_latents: FP8 latents are stored with scales and BF16 rotary values (weight_memory.Platform).
    """

    geometry: Geometry
    kv_cache_dtype: str = "bfloat16"
    draft_layers: int = 0
    scales_fp8_latents: bool = True

    @property
    def _latent(self) -> int:
        return self.geometry.kv_lora_rank + self.geometry.qk_rope_head_dim

    @property
    def _index_key_bytes(self) -> int:
        """FP8 values and a float32 scale for each 128 of them, in every layer (also those that do not index)."""
        return self.geometry.index_head_dim + self.geometry.index_head_dim // _INDEX_SCALE_BLOCK * 4

    @property
    def token_bytes(self) -> int:
        """What SGLang reckons a token to take when it sizes the pool."""
        layer_bytes = self._latent * KV_ITEM_BYTES[self.kv_cache_dtype] + self._index_key_bytes
        return layer_bytes * (self.geometry.num_hidden_layers + self.draft_layers)

    def tokens(self, available_bytes: int) -> int:
        """Tokens of whole pages that fit; 0 if none do."""
        return max(available_bytes, 0) // self.token_bytes // PAGE_TOKENS * PAGE_TOKENS

    def allocated_bytes(self, tokens: int) -> int:
        """What the pool's tensors take: a spare page each, and with scaled FP8 latents more than SGLang reckoned."""
        g = self.geometry
        latent_bytes = self._latent * KV_ITEM_BYTES[self.kv_cache_dtype]
        if self.kv_cache_dtype == "fp8_e4m3" and self.scales_fp8_latents:
            latent_bytes = g.kv_lora_rank + g.kv_lora_rank // _FP8_LATENT_SCALE_BLOCK * 4 + 2 * g.qk_rope_head_dim
        index_pages = (tokens + PAGE_TOKENS + 1) // PAGE_TOKENS
        layer_bytes = (tokens + PAGE_TOKENS) * latent_bytes + index_pages * PAGE_TOKENS * self._index_key_bytes
        return layer_bytes * (g.num_hidden_layers + self.draft_layers)
