"""What CP cannot serve is refused while the arguments are read, each with one sentence that names the way out."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from evals.arms import CPU_PLATFORM

CP = ["--enable-prefill-cp", "--cp-strategy", "interleave", "--tp-size", "2"]
REFUSED = {
    "no strategy": (["--enable-prefill-cp", "--tp-size", "2"], "--enable-prefill-cp needs --cp-strategy interleave"),
    "zigzag": (["--enable-prefill-cp", "--cp-strategy", "zigzag", "--tp-size", "2"], "--cp-strategy zigzag needs"),
    "tp 1": (["--enable-prefill-cp", "--cp-strategy", "interleave"], "--tp-size is 1: there are no ranks"),
    "tp 3": ([*CP, "--tp-size", "3"], "--tp-size 3 is not supported with CP"),
    "pipeline": ([*CP, "--pp-size", "2"], "--pp-size 2: pipeline parallelism is not supported"),
    "dp attention": ([*CP, "--dp-size", "2", "--enable-dp-attention"], "DP attention is not supported with CP"),
    "moe a2a": ([*CP, "--moe-a2a-backend", "deepep"], "--moe-a2a-backend deepep is not supported"),
    "attn cp": ([*CP, "--attn-cp-size", "2"], "--attn-cp-size 2 divides attention TP"),
    "threshold": ([*CP, "--cp-min-tokens", "0"], "--cp-min-tokens is 0: give a number"),
    "memory saver": (
        [*CP, "--cp-shard-source", "symmetric-memory", "--enable-memory-saver"],
        "--enable-memory-saver must be able to free the weights",
    ),
    "several hosts": (
        [*CP, "--cp-shard-source", "symmetric-memory", "--nnodes", "2"],
        "--nnodes 2: symmetric memory ends at the host",
    ),
    "not DSA": ([*CP, "--model-path", "NOT_DSA"], "is not a DSA model"),
    "heads": ([*CP, "--tp-size", "4", "--model-path", "SIX_HEADS"], "6 attention heads cannot be divided among"),
}
ACCEPTED = {
    "sharded": CP,
    "tp 8": [*CP, "--tp-size", "8"],
    "replicated": [*CP, "--cp-attn-weights", "replicated"],
    "memory saver, auto": [*CP, "--enable-memory-saver"],
    "prefill server": [*CP, "--disaggregation-mode", "prefill", "--disaggregation-transfer-backend", "nixl"],
    "off": ["--tp-size", "2"],
}

DECODE_SERVER = [*CP, "--disaggregation-mode", "decode", "--disaggregation-transfer-backend", "fake"]

READER = """
import json, sys
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.server_args import prepare_server_args
answers = {}
for name, argv in json.load(sys.stdin).items():
    try:
        args = prepare_server_args(argv)
        answers[name] = {"attn_cp_size": args._resolved().attn_cp_size}
    except Exception as error:
        answers[name] = {"error": f"{type(error).__name__}: {error}"}
print("ANSWERS" + json.dumps(answers))
"""


def read_launches(launches, **env):
    """What SGLang makes of each launch's arguments: the attention CP size, or the error."""
    run = subprocess.run(
        [sys.executable, "-c", READER],
        input=json.dumps(launches),
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **CPU_PLATFORM, **env},
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith("ANSWERS")]
    assert lines, run.stderr[-3000:]
    return json.loads(lines[0].removeprefix("ANSWERS"))


@pytest.fixture(scope="module")
def answers(checkpoint, tmp_path_factory):
    """What SGLang's own argument handling says to every launch, in one process that loads no weights."""
    not_dsa = tmp_path_factory.mktemp("models") / "llama"
    not_dsa.mkdir()
    llama = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_attention_heads": 8, "hidden_size": 64}
    (not_dsa / "config.json").write_text(json.dumps(llama))
    six_heads = not_dsa.parent / "six-heads"
    six_heads.mkdir()
    config = json.loads((checkpoint("glm") / "config.json").read_text())
    (six_heads / "config.json").write_text(json.dumps({**config, "num_attention_heads": 6, "num_key_value_heads": 6}))
    paths = {"NOT_DSA": str(not_dsa), "SIX_HEADS": str(six_heads)}

    launches = {name: argv for name, (argv, _) in REFUSED.items()} | ACCEPTED
    launches["decode server"] = DECODE_SERVER
    launches = {
        name: ["--model-path", str(checkpoint("glm")), "--device", "cpu", *(paths.get(word, word) for word in argv)]
        for name, argv in launches.items()
    }
    return read_launches(launches)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_sentence(name, answers):
    error = answers[name].get("error", "accepted")
    assert error.startswith("UsageError: --enable-prefill-cp cannot serve this launch."), error
    assert REFUSED[name][1] in error


@pytest.mark.parametrize(
    ("name", "attn_cp_size"), [("sharded", 1), ("tp 8", 1), ("prefill server", 1), ("replicated", 2), ("off", 1)]
)
def test_attention_tp_is_given_up_for_replicated_weights_only(name, attn_cp_size, answers):
    assert answers[name] == {"attn_cp_size": attn_cp_size}


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ({"SGLANG_ENABLE_CP_V2": "0"}, "cannot serve this launch. SGLANG_ENABLE_CP_V2 turns off the runner"),
        ({"SGLANG_PLUGINS": "cpu_reference"}, "needs the SGLang plugin sglang_cp, which was not loaded"),
    ],
)
def test_a_launch_ends_with_the_sentence_alone(env, sentence, checkpoint):
    launch = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(checkpoint("glm")), *CP]
    run = subprocess.run(launch, capture_output=True, text=True, timeout=120, env={**os.environ, **CPU_PLATFORM, **env})
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith("sglang-cp: --enable-prefill-cp"), last
    assert sentence in last
    assert "Traceback" not in run.stderr


def test_a_missing_package_is_named():
    """A rank whose environment has the patched SGLang, but not this package."""
    code = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "sglang_cp":
            raise ModuleNotFoundError(f"No module named {name!r}", name="sglang_cp")
sys.meta_path.insert(0, Missing())
from sglang.srt.layers.cp_per_batch import make_strategy
make_strategy(None)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (
        run.stderr.strip()
        .splitlines()[-1]
        .startswith(
            "RuntimeError: --enable-prefill-cp needs the sglang-cp package in the Python environment of every rank"
        )
    ), run.stderr


def test_an_unpatched_sglang_is_refused_with_the_way_out(checkpoint, tmp_path):
    installed = Path(importlib.util.find_spec("sglang").origin).parent
    shutil.copytree(installed, tmp_path / "sglang")  # with its byte code, which would take a minute to compile
    for info in installed.parent.glob("sglang-*.dist-info"):
        shutil.copytree(info, tmp_path / info.name)
    sglang_cp = [sys.executable, "-m", "sglang_cp.cli", "patch"]
    subprocess.run([*sglang_cp, "revert", "--root", str(tmp_path)], check=True, capture_output=True)

    launches = {
        "cp": ["--model-path", str(checkpoint("glm")), *CP],
        "off": ["--model-path", str(checkpoint("glm")), "--tp-size", "2"],
    }
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    answers = read_launches(launches, PYTHONPATH=path)
    assert "sglang-cp patch apply" in answers["cp"]["error"]
    assert answers["off"] == {"attn_cp_size": 1}
