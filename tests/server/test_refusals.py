"""What CP cannot serve is refused while the arguments are read, each with one sentence that names the way out."""

import json
import os
import subprocess
import sys

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
    "not DSA": ([*CP, "--model-path", "NOT_DSA"], "is not a DSA model"),
    "heads": ([*CP, "--tp-size", "4", "--model-path", "SIX_HEADS"], "6 attention heads cannot be divided among"),
}
ACCEPTED = {
    "sharded": CP,
    "tp 8": [*CP, "--tp-size", "8"],
    "replicated": [*CP, "--cp-attn-weights", "replicated"],
    "off": ["--tp-size", "2"],
}

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
    launches = {
        name: ["--model-path", str(checkpoint("glm")), "--device", "cpu", *(paths.get(word, word) for word in argv)]
        for name, argv in launches.items()
    }
    run = subprocess.run(
        [sys.executable, "-c", READER],
        input=json.dumps(launches),
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **CPU_PLATFORM},
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith("ANSWERS")]
    assert lines, run.stderr[-3000:]
    return json.loads(lines[0].removeprefix("ANSWERS"))


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_sentence(name, answers):
    error = answers[name].get("error", "accepted")
    assert error.startswith("UsageError: --enable-prefill-cp cannot serve this launch."), error
    assert REFUSED[name][1] in error


@pytest.mark.parametrize(("name", "attn_cp_size"), [("sharded", 1), ("tp 8", 1), ("replicated", 2), ("off", 1)])
def test_attention_tp_is_given_up_for_replicated_weights_only(name, attn_cp_size, answers):
    assert answers[name] == {"attn_cp_size": attn_cp_size}
