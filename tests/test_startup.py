from types import SimpleNamespace

import pytest

from sglang_cp.startup import fixed_min_tokens, launch_problems


@pytest.mark.parametrize(
    ("given", "tokens"),
    [("2048", 2048), (1, 1), ("0", None), (0, None), ("-3", None), ("2.5", None), ("auto", None), ("", None)],
)
def test_a_threshold_is_a_whole_number_of_at_least_1(given, tokens):
    assert fixed_min_tokens(SimpleNamespace(cp_min_tokens=given)) == tokens


def args(**changes):
    """SGLang's ServerArgs of a launch without a problem."""
    config = SimpleNamespace(architectures=["GlmMoeDsaForCausalLM"], num_attention_heads=64)
    resolved = SimpleNamespace(enable_dp_attention=False, attn_cp_size=1, moe_a2a_backend="none")
    fields = {
        "cp_strategy": "interleave",
        "cp_min_tokens": "2048",
        "cp_shard_source": "auto",
        "cp_row_collectives": "auto",
        "enable_memory_saver": False,
        "moe_dense_tp_size": None,
        "tp_size": 4,
        **dict.fromkeys(("pp_size", "dp_size", "dcp_size", "nnodes"), 1),
        "get_model_config": lambda: SimpleNamespace(hf_config=config),
        "_resolved": lambda: resolved,
    }
    return SimpleNamespace(**{**fields, **changes})


@pytest.mark.parametrize("flag", ["shard_source", "row_collectives"])
def test_symmetric_memory_is_asked_for_on_one_host_only(flag):
    asked = {f"cp_{flag}": "symmetric-memory"}
    assert list(launch_problems(args(**asked))) == []
    assert list(launch_problems(args(nnodes=2))) == []
    [problem] = launch_problems(args(**asked, nnodes=2))
    assert problem.endswith(f"leave --cp-{flag.replace('_', '-')} at auto.")
