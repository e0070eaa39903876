"""The estimate against what was measured, from the config alone.

AMD's figures: "Serving GLM-5.2-MXFP4 on AMD Instinct MI355X: When Prefill Context Parallelism Pays" (ROCm blogs).
"""

from __future__ import annotations

import pytest

from sglang_cp.doctor.estimate import GIB, Serving, estimate
from sglang_cp.doctor.kv_pool import KVPool
from sglang_cp.doctor.model_config import Geometry
from sglang_cp.doctor.quantization import format_of
from sglang_cp.doctor.weight_memory import CUDA, ROCM, Ranks, WeightMemory
from sglang_cp.errors import UsageError

MI355X = Serving(4, 288 * GIB, 0.85, draft=True, platform=ROCM)


def test_glm_mxfp4_on_mi355x_weighs_what_amd_measured(glm_mxfp4) -> None:
    arms = estimate(glm_mxfp4, MI355X)
    off, replicated = arms["off"].weight_bytes / GIB, arms["replicated"].weight_bytes / GIB
    assert off == pytest.approx(101.45, rel=0.005)
    assert replicated == pytest.approx(120.13, rel=0.005)
    assert replicated - off == pytest.approx(18.68, rel=0.01)


def test_replicated_attention_costs_the_pool_what_amd_measured(glm_mxfp4) -> None:
    arms = estimate(glm_mxfp4, MI355X)
    assert arms["off"].pool_tokens - arms["replicated"].pool_tokens == pytest.approx(199_744, rel=0.01)
    # "At 61,440 tokens per request only about nineteen fit at once in the CP-on pool"; each generates 512 more.
    assert arms["replicated"].pool_tokens // (61_440 + 512) in (19, 20)


def test_sharded_costs_the_pool_two_buffers_only(glm_mxfp4) -> None:
    arms = estimate(glm_mxfp4, MI355X)
    assert arms["sharded"].weights == arms["off"].weights
    # Of a layer in BF16: q_b 67 MB, w_kc 12.6, w_vc 16.8, o_proj 201 (DESIGN, 6).
    assert arms["sharded"].buffer_bytes == pytest.approx(2 * 297.8e6, rel=0.001)
    lost = arms["off"].pool_tokens - arms["sharded"].pool_tokens
    assert lost == pytest.approx(arms["sharded"].buffer_bytes / (79 * (576 * 2 + 132)), abs=64)


def test_checkpoint_of_408_gib_is_told_from_its_exclude_list(glm_mxfp4) -> None:
    """ "282 safetensors shards, 408 GB on disk": what is loaded on one rank, less what SGLang adds to it."""
    geometry = Geometry.from_config(glm_mxfp4)
    memory = WeightMemory(geometry, format_of(glm_mxfp4), ROCM)
    target, draft = memory.target(Ranks.plain_tp(1)), memory.draft(Ranks.plain_tp(1))
    shared_indexers = target["indexers"] * 57 // 78  # 21 of 78 layers index and have weights
    added = target["absorbed kv_b"] + target["rotary cache"] + draft["absorbed kv_b"] + shared_indexers
    on_disk = sum(target.values()) + sum(draft.values()) - added
    assert on_disk / GIB == pytest.approx(408, abs=1)


def test_unquantized_on_two_h200s_weighs_what_was_measured(glm_bf16) -> None:
    """GLM-5.2's attention geometry in 6 layers (evals/results/h200-first-run.md)."""
    config = glm_bf16 | {
        "num_hidden_layers": 6,
        "first_k_dense_replace": 1,
        "n_routed_experts": 32,
        "vocab_size": 32768,
        "max_position_embeddings": 202752,
        "indexer_rope_interleave": False,
    }
    arms = estimate(config, Serving(2))
    assert arms["off"].static_bytes / GIB == pytest.approx(7.72, rel=0.006)
    assert arms["replicated"].static_bytes / GIB == pytest.approx(8.83, rel=0.006)
    assert arms["sharded"].static_bytes / GIB == pytest.approx(8.27, rel=0.006)
    assert arms["sharded"].buffer_bytes / 1e9 == pytest.approx(0.60, rel=0.01)


def test_without_a_draft_model_neither_weights_nor_kv_are_reserved_for_it(glm_mxfp4) -> None:
    arms = estimate(glm_mxfp4, Serving(4, 288 * GIB, platform=ROCM))
    assert arms["off"].draft_bytes == 0
    budget = 288 * GIB * 0.85 - arms["off"].weight_bytes
    assert arms["off"].pool_tokens == pytest.approx(budget / (78 * 1284), abs=64)
    without_layer = glm_mxfp4 | {"num_nextn_predict_layers": 0}
    assert estimate(without_layer, MI355X)["off"] == arms["off"]


def test_pool_is_unknown_with_the_gpu(glm_mxfp4) -> None:
    off = estimate(glm_mxfp4, Serving(4))["off"]
    assert (off.pool_tokens, off.pool_bytes) == (None, None)
    assert off.weight_bytes > 0


def test_too_small_gpu_has_no_pool(glm_mxfp4) -> None:
    assert estimate(glm_mxfp4, Serving(4, 80 * GIB))["off"].pool_tokens == 0


def test_block_fp8_experts_take_a_byte_and_a_scale_per_block(glm_bf16) -> None:
    config = glm_bf16 | {
        "quantization_config": {
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": ["lm_head", "model.embed_tokens", "model.layers.0.mlp"],
        }
    }
    bf16, fp8 = estimate(glm_bf16, Serving(4))["off"].weights, estimate(config, Serving(4))["off"].weights
    assert fp8["routed experts"] / bf16["routed experts"] == pytest.approx(0.5 + 2 / 128**2, rel=1e-6)
    # One of the three dense layers is excluded.
    assert fp8["dense FFN"] / bf16["dense FFN"] == pytest.approx(2 / 3, rel=0.001)
    assert fp8["embedding and LM head"] == bf16["embedding and LM head"]
    # CUDA dequantizes for the absorbed product, ROCm does not.
    assert fp8["absorbed kv_b"] == bf16["absorbed kv_b"]
    on_rocm = estimate(config, Serving(4, platform=ROCM))["off"].weights
    assert on_rocm["absorbed kv_b"] * 2 == bf16["absorbed kv_b"]
    # Without blocks FP8 stays FP8.
    config["quantization_config"].pop("weight_block_size")
    assert estimate(config, Serving(4))["off"].weights["absorbed kv_b"] * 2 == bf16["absorbed kv_b"]


def test_index_projections_are_fused_in_bf16_on_cuda_only(glm_bf16) -> None:
    quantized = glm_bf16 | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    memory = {
        name: WeightMemory(Geometry.from_config(config), format_of(config), platform).target(Ranks.plain_tp(4))
        for name, config, platform in (
            ("cuda", quantized, CUDA),
            ("rocm", quantized, ROCM),
            ("cuda, NeoX", quantized | {"indexer_rope_interleave": False}, CUDA),
        )
    }
    wk_bytes = 128 * 6144
    assert memory["cuda"]["indexers"] - memory["rocm"]["indexers"] == 78 * (wk_bytes - 48 * 4)
    assert memory["cuda, NeoX"]["indexers"] == memory["rocm"]["indexers"]
    # Two rotary styles are two tables.
    assert (
        memory["cuda, NeoX"]["rotary cache"] == 2 * memory["cuda"]["rotary cache"] == 4 * memory["rocm"]["rotary cache"]
    )


@pytest.mark.parametrize(
    ("dtype", "scaled", "reckoned", "allocated"),
    [("bfloat16", True, 1284, 1284), ("fp8_e4m3", True, 708, 788), ("fp8_e4m3", False, 708, 708)],
)
def test_pool_takes_whole_pages_and_one_more(glm_bf16, dtype, scaled, reckoned, allocated) -> None:
    pool = KVPool(Geometry.from_config(glm_bf16), dtype, draft_layers=1, scales_fp8_latents=scaled)
    assert pool.token_bytes == reckoned * 79
    assert pool.tokens(130 * reckoned * 79 - 1) == 128
    assert pool.tokens(-1) == 0
    # With pages of 64 tokens, a spare one in each tensor.
    assert pool.allocated_bytes(128) == (128 + 64) * allocated * 79


def test_config_of_another_model_is_refused_by_what_it_lacks(glm_bf16) -> None:
    del glm_bf16["index_head_dim"]
    with pytest.raises(UsageError, match="not that of a DSA model: it lacks index_head_dim"):
        estimate(glm_bf16, Serving(4))


def test_uneven_sharding_is_refused(glm_bf16) -> None:
    with pytest.raises(UsageError, match="--tp-size 3 does not divide num_attention_heads 64"):
        estimate(glm_bf16, Serving(3))
