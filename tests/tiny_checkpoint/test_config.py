"""Which sizes are refused, and that transformers and SGLang read config.json alike."""

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig

from sglang_cp.errors import UsageError
from sglang_cp.tiny_checkpoint import TinyConfig
from sglang_cp.tiny_checkpoint.formats import AttnQuant
from sglang_cp.tiny_checkpoint.vocabulary import VOCAB_SIZE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arch": "llama"}, "arch must be one of glm, deepseek-v32, but is 'llama'"),
        ({"dtype": "float16"}, "dtype must be one of float32, bfloat16"),
        ({"layers": 0}, "layers must be at least 1"),
        ({"layers": -3}, "layers must be at least 1"),
        ({"dense_layers": -1}, "dense_layers must be between 0 and layers"),
        ({"dense_layers": 5}, "dense_layers must be between 0 and layers"),
        ({"heads": 0}, "heads must be a positive multiple of 2"),
        ({"heads": 7}, "heads must be a positive multiple of 2"),
        ({"hidden": -128}, "hidden must be a positive multiple of 16"),
        ({"hidden": 100}, "hidden must be a positive multiple of 16"),
        ({"q_lora_rank": 0}, "q_lora_rank must be a positive multiple of 16"),
        ({"qk_nope_head_dim": 8}, "qk_nope_head_dim must be a positive multiple of 16"),
        ({"v_head_dim": 0}, "v_head_dim must be a positive multiple of 16"),
        ({"dense_intermediate": 12}, "dense_intermediate must be a positive multiple of 8"),
        ({"expert_intermediate": 0}, "expert_intermediate must be a positive multiple of 8"),
        ({"experts": 1, "experts_per_token": 1}, "experts must be at least 2"),
        ({"experts": 4, "experts_per_token": 5}, r"experts_per_token \(5\) must not exceed experts \(4\)"),
        ({"experts_per_token": 0}, "experts_per_token must be at least 1"),
        ({"index_topk": 0}, "index_topk must be at least 1"),
        ({"index_topk": 4096}, "index_topk must be at most 2048"),
        ({"index_heads": 0}, "index_heads must be at least 1"),
        ({"index_share": True, "layers": 1}, "index_share needs at least 2 layers"),
        ({"index_share": True, "arch": "deepseek-v32"}, "index_share needs arch glm"),
        ({"nextn": True, "layers": 1}, "nextn needs at least 2 layers"),
        ({"nextn": True, "attn_quant": "mxfp4"}, "nextn needs attn_quant none"),
        ({"max_positions": 0}, "max_positions must be at least 1"),
        ({"seed": -1}, "seed must not be negative"),
        ({"attn_quant": "int8"}, "attn_quant must be one of none, block-fp8, quark-fp8, mxfp4"),
        ({"attn_quant": "mxfp4", "dtype": "float32"}, "attn_quant mxfp4 needs dtype bfloat16"),
        ({"attn_quant": "mxfp4", "q_lora_rank": 48}, "q_lora_rank must be a positive multiple of 32, a block or group"),
        ({"attn_quant": "block-fp8"}, "q_lora_rank must be a positive multiple of 128, a block or group of block-fp8"),
        ({"attn_quant": "block-fp8", "q_lora_rank": 128}, r"heads \(8\), .* give 2 ranks no whole blocks of block-fp8"),
    ],
)
def test_bad_sizes_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        replace(TinyConfig(), **changes)


@pytest.mark.parametrize("arch", ["glm", "deepseek-v32"])
def test_transformers_reads_every_key_as_written(arch: Any) -> None:
    written = TinyConfig(arch=arch, layers=5, dense_layers=2, index_topk=48).to_config_json()
    loaded = AutoConfig.for_model(**written)
    assert loaded.architectures == written["architectures"]
    for key in written.keys() - {"dtype"}:
        assert getattr(loaded, key) == written[key], key


def test_vocabulary_splits_evenly_over_ranks() -> None:
    assert VOCAB_SIZE % 64 == 0
    assert VOCAB_SIZE > 256


def test_tensor_parallel_sizes() -> None:
    assert TinyConfig().tensor_parallel_sizes == [1, 2, 4, 8]
    assert TinyConfig(heads=4).tensor_parallel_sizes == [1, 2, 4]
    assert TinyConfig(heads=6).tensor_parallel_sizes == [1, 2]
    assert TinyConfig(experts=4).tensor_parallel_sizes == [1, 2, 4]


@pytest.mark.parametrize("arch", ["glm", "deepseek-v32"])
def test_every_format_has_whole_shards_at_tp_2_and_4(arch: Any) -> None:
    sizes = {quant: TinyConfig.stored_as(quant, arch=arch).tensor_parallel_sizes for quant in get_args(AttnQuant)}
    assert sizes == {"none": [1, 2, 4, 8], "block-fp8": [1, 2, 4], "quark-fp8": [1, 2, 4, 8], "mxfp4": [1, 2, 4, 8]}
    assert TinyConfig.stored_as("mxfp4", arch=arch, v_head_dim=16).tensor_parallel_sizes == [1, 2, 4]


def test_sharing_schedule() -> None:
    config = TinyConfig(layers=7, index_share=True)
    assert [config.shares_index(i) for i in range(7)] == [False, True, True, False, True, True, False]
    assert not any(TinyConfig(layers=7).shares_index(i) for i in range(7))


# The first example imports SGLang.
@settings(deadline=None)
@given(layers=st.integers(2, 40), share=st.booleans())
def test_sglang_and_transformers_derive_our_schedule(layers: int, share: bool) -> None:
    """SGLang goes by frequency and offset, transformers by `indexer_types`, or by the former if it is absent."""
    model_config = pytest.importorskip("sglang.srt.configs.model_config")
    config = TinyConfig(layers=layers, index_share=share)
    ours = [config.shares_index(i) for i in range(layers)]
    written = config.to_config_json()
    loaded = AutoConfig.for_model(**written)
    assert [kind == "shared" for kind in loaded.indexer_types] == ours
    assert [model_config.dsa_layer_skips_topk(loaded, i) for i in range(layers)] == ours
    del written["indexer_types"]
    assert [kind == "shared" for kind in AutoConfig.for_model(**written).indexer_types] == ours


@pytest.mark.parametrize("arch", ["glm", "deepseek-v32"])
def test_sglang_takes_it_for_a_dsa_model(arch: Any) -> None:
    model_config = pytest.importorskip("sglang.srt.configs.model_config")
    config = TinyConfig(arch=arch)
    loaded = AutoConfig.for_model(**config.to_config_json())
    assert model_config.is_deepseek_dsa(loaded)
    assert model_config.get_dsa_index_topk(loaded) == config.index_topk
    assert model_config.get_dsa_index_head_dim(loaded) == 128


def test_a_size_that_no_checkpoint_has_is_refused() -> None:
    with pytest.raises(UsageError, match="max_positions must be at most"):
        TinyConfig(max_positions=10**20)
    with pytest.raises(UsageError, match="hidden must be at most"):
        TinyConfig(hidden=1600 * 10**9)
