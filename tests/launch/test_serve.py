"""What cp.sh, baseline.sh and production.sh launch: the blog post's commands, and nothing else between the arms."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import pytest

from tests.launch.conftest import Machine, Run

# The baseline of the blog post, with the places of the model, the port and what an arm adds.
BLOG = """
python3 -m sglang.launch_server
--model-path {model} --tp-size 4
--trust-remote-code
--served-model-name glm-5.2-mxfp4
--attention-backend dsa --dsa-prefill-backend aiter --dsa-decode-backend aiter
--dsa-topk-backend sgl-kernel
--kv-cache-dtype bfloat16
--chunked-prefill-size 32768 --mem-fraction-static 0.85
--reasoning-parser glm45 --tool-call-parser glm47
--disable-radix-cache --host 0.0.0.0 --port 30003
{cp}
--speculative-algorithm EAGLE --speculative-num-steps 5
--speculative-eagle-topk 1 --speculative-num-draft-tokens 6
"""
BLOG_ENV = {"HIP_VISIBLE_DEVICES": "4,5,6,7", "SGLANG_USE_AITER": "1", "SGLANG_DSA_NO_PAD_HEADS": "1"}
CP = "--enable-prefill-cp --cp-strategy interleave --cp-attn-weights"


def blog(model: Path, cp: str = "") -> list[str]:
    return [str(model) if word == "{model}" else word for word in BLOG.replace("{cp}", cp).split()]


def launched_env(run: Run) -> dict[str, str]:
    """What the script exported."""
    given = {"PATH", "PYTHONPATH", "INTERPRETER", "RECORD", "MODEL_PATH", "PORT", "PWD", "OLDPWD", "SHLVL", "_"}
    return {name: value for name, value in run.env.items() if name not in given and not name.startswith("LC_")}


@pytest.mark.parametrize(
    ("script", "arguments", "cp"),
    [
        ("baseline.sh", [], ""),
        ("cp.sh", [], f"{CP} sharded"),
        ("cp.sh", ["--arm", "replicated"], f"{CP} replicated"),
    ],
)
def test_the_arms_are_the_blogs_commands(machine: Machine, script: str, arguments: list[str], cp: str) -> None:
    run = machine.run(script, "--model", machine.model, *arguments)
    assert run.command == blog(machine.model, cp)
    assert launched_env(run) == BLOG_ENV


def test_the_two_arms_differ_in_the_cp_flags_alone(machine: Machine) -> None:
    off, on = (machine.run(script, "--model", machine.model) for script in ("baseline.sh", "cp.sh"))
    assert Counter(on.command) - Counter(off.command) == Counter([*CP.split(), "sharded"])
    assert Counter(off.command) - Counter(on.command) == Counter()
    assert launched_env(on) == launched_env(off)


@pytest.mark.parametrize(
    ("arguments", "cp"),
    [([], f"{CP} sharded"), (["--arm", "replicated"], f"{CP} replicated"), (["--arm", "off"], "")],
)
def test_production_keeps_the_radix_cache(machine: Machine, arguments: list[str], cp: str) -> None:
    run = machine.run("production.sh", "--model", machine.model, *arguments)
    expected = blog(machine.model, cp)
    expected.remove("--disable-radix-cache")
    assert run.command == expected
    assert launched_env(run) == BLOG_ENV


def test_arguments_win_over_the_environment_and_the_environment_over_defaults(machine: Machine) -> None:
    machine.env = {"MODEL_PATH": str(machine.model), "PORT": "30444", "HIP_VISIBLE_DEVICES": "0,1,2,3,4"}
    run = machine.run("cp.sh")
    assert run.command[run.command.index("--model-path") + 1] == str(machine.model)
    assert run.command[run.command.index("--port") + 1] == "30444"
    assert run.env["HIP_VISIBLE_DEVICES"] == "0,1,2,3,4"

    other = machine.root / "it's another  one"
    machine.write_model(other)
    run = machine.run("cp.sh", "--model", other, "--port", 30555, "--gpus", "1,3,5,7")
    assert run.command[run.command.index("--model-path") + 1] == str(other)
    assert run.command[run.command.index("--port") + 1] == "30555"
    assert run.env["HIP_VISIBLE_DEVICES"] == "1,3,5,7"


def test_what_follows_two_dashes_goes_to_sglang_untouched(machine: Machine) -> None:
    more = ["--max-running-requests", "128", "--log-level", "a b", "--arm"]
    run = machine.run("cp.sh", "--model", machine.model, "--", *more)
    assert run.command == [*blog(machine.model, f"{CP} sharded"), *more]


def test_the_script_becomes_the_server_so_that_signals_reach_it(machine: Machine) -> None:
    run = machine.run("production.sh", "--model", machine.model)
    assert [record["pid"] for record in run.records] == [run.pid]


@pytest.mark.parametrize("script", ["cp.sh", "baseline.sh", "production.sh"])
def test_the_pinned_sglang_knows_every_flag(machine: Machine, script: str) -> None:
    from sglang.srt.server_args import ServerArgs

    command = machine.run(script, "--model", machine.model, "--port", 30666).command
    parser = argparse.ArgumentParser(exit_on_error=False)
    ServerArgs.add_cli_args(parser)
    args = parser.parse_args(command[3:])
    assert (args.model_path, args.tp_size, args.port) == (str(machine.model), 4, 30666)
    assert args.enable_prefill_cp == (script != "baseline.sh")
    assert args.disable_radix_cache == (script != "production.sh")


@pytest.mark.parametrize("script", ["cp.sh", "baseline.sh", "production.sh"])
def test_help_starts_nothing_and_names_every_argument(machine: Machine, script: str) -> None:
    run = machine.run(script, "--help")
    assert (run.code, run.err, run.records) == (0, "", [])
    for argument in ("--model", "--port", "--gpus", "--arm"):
        assert f"\n  {argument} " in run.out
