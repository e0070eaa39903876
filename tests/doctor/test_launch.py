from __future__ import annotations

from dataclasses import replace

import pytest

from sglang_cp.doctor.estimate import GIB, Serving, estimate
from sglang_cp.doctor.launch import Launch, choose_source, problems, symmetric_memory_obstacle
from sglang_cp.doctor.machine import Fact
from sglang_cp.errors import UsageError


@pytest.fixture(autouse=True)
def no_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SGLANG_PLATFORM", "SGLANG_USE_AITER", "SGLANG_ENABLE_CP_V2"):
        monkeypatch.delenv(name, raising=False)


def found(machine, launch: Launch, config=None, arms=None) -> list[str]:
    return problems(launch, machine, config, arms)


def test_a_good_launch_has_no_problem(machine, glm_mxfp4) -> None:
    arms = estimate(glm_mxfp4, Serving(4, 288 * GIB))
    assert found(machine, Launch(4, draft=True), glm_mxfp4, arms) == []
    assert found(machine, Launch(4, cp_attn_weights="replicated"), glm_mxfp4, arms) == []


def test_patches_and_plugin_are_problems_in_their_own_words(machine) -> None:
    broken = replace(machine, patches=Fact(None, "Not patched."), plugin=Fact(None, "Not loaded."))
    assert found(broken, Launch(4)) == ["Not patched.", "Not loaded."]


def test_too_few_gpus(machine, no_gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(machine, Launch(4)) == []
    assert found(machine, Launch(8)) == ["--tp-size 8 needs as many GPUs, and PyTorch sees 4."]
    [problem] = found(no_gpu, Launch(4))
    assert problem.startswith("There is no GPU to serve on: No HIP GPUs are available;")
    monkeypatch.setenv("SGLANG_PLATFORM", "cpu_reference")
    assert found(no_gpu, Launch(4)) == []


@pytest.mark.parametrize(
    ("changed", "tp_size", "words"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, 4, "LlamaForCausalLM is not a DSA model"),
        ({}, 1, "--tp-size is 1"),
        ({}, 3, "--tp-size 3 is not supported with CP"),
        ({"num_attention_heads": 66}, 4, "66 attention heads cannot be divided"),
    ],
)
def test_what_the_server_refuses_is_said_beforehand(machine, glm_mxfp4, changed, tp_size, words) -> None:
    config = glm_mxfp4 | changed
    assert any(words in problem for problem in found(machine, Launch(tp_size), config))
    replicated = found(machine, Launch(tp_size, cp_attn_weights="replicated"), config)
    assert not any(words in problem for problem in replicated)


def test_experts_that_ranks_cannot_share(machine, glm_bf16) -> None:
    blocks = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    fp8 = glm_bf16 | {"quantization_config": blocks, "moe_intermediate_size": 256}
    assert found(machine, Launch(2), fp8) == []
    [problem] = found(machine, Launch(4), fp8)
    assert "experts of 256 features into 64, which is not a multiple of the FP8 block of 128" in problem
    [problem] = found(machine, Launch(4), glm_bf16 | {"moe_intermediate_size": 250})
    assert "--tp-size 4 does not divide experts of 250 features" in problem


def test_no_room_for_the_pool(machine, glm_mxfp4) -> None:
    # 101 GB of weights, and with the buffers a little more than the budget of 102 GB.
    arms = estimate(glm_mxfp4, Serving(4, 120 * GIB, 0.85))
    assert arms["off"].pool_tokens > 0
    [problem] = found(machine, Launch(4), glm_mxfp4, estimate(glm_mxfp4, Serving(4, 119 * GIB, 0.853)))
    assert "leave no room for the KV pool under --mem-fraction-static 0.85" in problem
    # Of the arms only the one that is launched counts.
    [problem] = found(machine, Launch(4, cp_attn_weights="replicated"), glm_mxfp4, arms)
    assert problem.startswith("The weights take 120.09 GB")


def test_draft_without_a_nextn_layer(machine, glm_mxfp4) -> None:
    config = glm_mxfp4 | {"num_nextn_predict_layers": 0}
    assert found(machine, Launch(4), config) == []
    assert "no NextN layer" in found(machine, Launch(4, draft=True), config)[0]


def test_aiter_is_needed_when_it_is_asked_for(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    without = replace(machine, aiter=Fact(None, "not installed"))
    assert found(without, Launch(4)) == []
    monkeypatch.setenv("SGLANG_USE_AITER", "1")
    assert "SGLANG_USE_AITER=1 needs AITER: not installed" in found(without, Launch(4))[0]
    assert found(replace(without, rocm=False), Launch(4)) == []


def test_symmetric_memory_needs_peer_access_between_the_gpus_in_use(machine, no_gpu) -> None:
    assert symmetric_memory_obstacle(machine, 4) is None
    apart = replace(machine, unreachable=Fact([(3, 0)]))
    assert symmetric_memory_obstacle(apart, 2) is None
    assert symmetric_memory_obstacle(apart, None) == "GPU 3 cannot read the memory of GPU 0"
    assert symmetric_memory_obstacle(replace(machine, symmetric_memory=Fact(None, "no driver")), 4) == "no driver"
    assert symmetric_memory_obstacle(no_gpu, 4) == "no GPU: No HIP GPUs are available"


def test_source_falls_back_only_under_auto(machine) -> None:
    assert choose_source("auto", None)[0] == choose_source("symmetric-memory", None)[0] == "symmetric memory"
    assert choose_source("auto", "no driver") == ("process group", "no symmetric memory: no driver")
    assert choose_source("process-group", None)[0] == "process group"
    with pytest.raises(UsageError, match="impossible here: no driver; use auto"):
        choose_source("symmetric-memory", "no driver")
    apart = replace(machine, unreachable=Fact([(0, 1)]))
    assert found(apart, Launch(4)) == []
    [problem] = found(apart, Launch(4, cp_shard_source="symmetric-memory"))
    assert "GPU 0 cannot read the memory of GPU 1" in problem
    assert found(apart, Launch(4, cp_shard_source="symmetric-memory", cp_attn_weights="replicated")) == []
