"""How the servers of a throughput run are launched, and what must hold of a running one."""

import os
from pathlib import Path

import pytest

from evals.throughput_arms import ARMS, Launch

MODEL = Path("/a model")
PATCHED = {"enable_prefill_cp": True, "cp_attn_weights": "sharded", "cp_min_tokens": 2048, "chunked_prefill_size": 8192}


def test_arms_differ_in_cp_flags_alone():
    launch = Launch(MODEL, 4, min_tokens=512, server_args=("--mem-fraction-static", "0.8"))
    common = ["--tp-size", "4", "--disable-radix-cache", "--mem-fraction-static", "0.8"]
    interleave = ["--enable-prefill-cp", "--cp-strategy", "interleave"]
    added = {
        "unpatched-off": [],
        "unpatched-cp": interleave,
        "off": [],
        "replicated": [*interleave, "--cp-attn-weights", "replicated"],
        "sharded": [*interleave, "--cp-attn-weights", "sharded", "--cp-min-tokens", "512"],
        "auto": [*interleave, "--cp-attn-weights", "sharded", "--cp-min-tokens", "auto"],
    }
    assert {name: list(launch.spec(arm).args) for name, arm in ARMS.items()} == {
        name: common + flags for name, flags in added.items()
    }


def test_the_unpatched_tree_is_found_first_and_without_our_plugin(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/mine")
    launch = Launch(MODEL, 2, unpatched=Path("/upstream"))
    for name, arm in ARMS.items():
        env = launch.spec(arm).env
        if name.startswith("unpatched"):
            assert env == {"PYTHONPATH": f"/upstream{os.pathsep}/mine", "SGLANG_PLUGINS": "cpu_reference"}
        else:
            assert env == {}


def test_on_a_cpu_every_arm_runs_on_the_reference_platform():
    launch = Launch(MODEL, 2, cpu=True, unpatched=Path("/upstream"))
    for arm in ARMS.values():
        spec = launch.spec(arm)
        assert list(spec.args[:4]) == ["--device", "cpu", "--dtype", "float32"]
        assert spec.env["SGLANG_PLATFORM"] == "cpu_reference"


@pytest.mark.parametrize(
    ("arm", "info", "problem"),
    [
        ("sharded", PATCHED, None),
        ("off", PATCHED | {"enable_prefill_cp": False}, None),
        ("unpatched-cp", {"enable_prefill_cp": True}, None),
        ("unpatched-off", {"enable_prefill_cp": False}, None),
        ("unpatched-off", PATCHED | {"enable_prefill_cp": False}, "unpatched-off runs on a patched SGLang."),
        ("off", {"enable_prefill_cp": False}, "off runs on an unpatched SGLang."),
        ("off", PATCHED, "off runs with CP on."),
        ("unpatched-cp", {"enable_prefill_cp": False}, "unpatched-cp runs with CP off."),
    ],
)
def test_a_server_must_be_its_arm(arm, info, problem):
    assert ARMS[arm].problem(info) == problem


@pytest.mark.parametrize(
    ("arm", "changes", "lengths"),
    [
        ("off", {}, []),
        ("replicated", {"cp_attn_weights": "replicated"}, [64, 2047, 2048, 61440]),
        ("sharded", {}, [2048, 61440]),
        ("sharded", {"cp_min_tokens": "2048"}, [2048, 61440]),
        ("sharded", {"chunked_prefill_size": 1024}, []),
        ("sharded", {"chunked_prefill_size": -1}, [2048, 61440]),
        ("auto", {"cp_min_tokens": "auto"}, []),
    ],
)
def test_which_prompts_must_be_dealt_out(arm, changes, lengths):
    info = PATCHED | changes
    assert [length for length in (64, 2047, 2048, 61440) if ARMS[arm].must_deal_out(info, length)] == lengths
