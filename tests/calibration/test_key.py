from types import SimpleNamespace

from sglang_cp.calibration.key import calibration_key

LAUNCH = {"device": "d", "dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "tp": 4, "shard_source": "s"}


def config(**changes):
    sizes = {"architectures": ["GlmMoeDsaForCausalLM"], "num_hidden_layers": 78, "index_topk": 2048, "vocab_size": 9}
    return SimpleNamespace(**{**sizes, **changes})


def test_the_key_has_what_sizes_an_extend_and_nothing_else():
    key = calibration_key(config(q_lora_rank=None), **LAUNCH)
    sizes = {"num_hidden_layers": 78, "index_topk": 2048}
    assert key.model == {"architecture": "GlmMoeDsaForCausalLM", "quantization": "none", **sizes}
    assert set(key.versions) == {"sglang", "sglang-cp", "torch"}


def test_another_geometry_or_weight_format_is_another_file():
    names = {
        calibration_key(config(**changes), **LAUNCH).file_name
        for changes in ({}, {"num_hidden_layers": 6}, {"quantization_config": {"quant_method": "fp8"}})
    }
    assert len(names) == 3
    assert calibration_key(config(vocab_size=1), **LAUNCH).file_name in names


def test_a_server_whose_extends_keep_hidden_states_has_a_file_of_its_own():
    plain, drafting = (calibration_key(config(), **LAUNCH, hidden_states_kept=kept) for kept in (False, True))
    assert plain.file_name != drafting.file_name
    assert drafting.differences(plain) == ["hidden_states_kept is True, not False"]
