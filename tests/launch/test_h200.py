"""launch/h200: what serve.sh launches and compare.sh measures, and what both refuse."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from evals.throughput import main as throughput
from evals.throughput_arms import ARMS, Launch
from sglang_cp.patching import tool
from sglang_cp.patching.series import read_series
from sglang_cp.patching.state import State, inspect
from sglang_cp.patching.tree import open_tree
from sglang_cp.pin import read_pin, series_dir
from tests.launch.conftest import CHECKOUT, Machine, Run

H200 = CHECKOUT / "launch/h200"
README = (H200 / "README.md").read_text()
RELEASE = read_pin().release

# What torch says of itself; it sees those of CUDA_VISIBLE_DEVICES that exist.
TORCH = """\
import os

class version:
    cuda = {cuda!r}

class cuda:
    @staticmethod
    def device_count():
        return sum(int(gpu) < {gpus} for gpu in os.environ["CUDA_VISIBLE_DEVICES"].split(","))

    @staticmethod
    def get_device_capability(gpu):
        return {capability!r}
"""

# Stands in for the measurement: records how it was called, and ends with the next of the exit codes in CODES.
MEASURE = """\
import json, os, sys

with open(os.environ["RECORD"], "a") as record:
    record.write(json.dumps({"command": ["python3", *sys.argv[1:]], "env": dict(os.environ)}) + "\\n")
done = sum(1 for _ in open(os.environ["RECORD"])) - 1
sys.exit(int(os.environ.get("CODES", "0,0").split(",")[done]))
"""


def torch(machine: Machine, cuda: str | None = "13.0", gpus: int = 2, capability: tuple[int, int] = (9, 0)) -> None:
    """The torch that Python imports."""
    (machine.modules / "torch.py").write_text(TORCH.format(cuda=cuda, gpus=gpus, capability=capability))


def patched_sglang(machine: Machine) -> None:
    """Those files of SGLang that the patches touch, patched, before the installed package."""
    series = read_series(series_dir(RELEASE), RELEASE)
    installed = open_tree()
    files = tool.originals(installed, series, inspect(installed, series.digest))
    package = machine.modules / "sglang"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "_version.py").write_text(f"__version__ = {RELEASE!r}\n")
    for path, content in files.items():
        if content is not None:
            (machine.modules / path).parent.mkdir(parents=True, exist_ok=True)
            (machine.modules / path).write_bytes(content)
    tool.apply(open_tree(machine.modules), series)


@pytest.fixture
def machine(machine: Machine) -> Machine:
    """A Hopper machine with two GPUs and a patched SGLang."""
    torch(machine)
    patched_sglang(machine)
    (machine.bin / "python3").rename(machine.bin / "stub")
    (machine.root / "measure.py").write_text(MEASURE)
    measure = shlex.join([sys.executable, str(machine.root / "measure.py")])
    stub = shlex.quote(str(machine.bin / "stub"))
    (machine.bin / "python3").write_text(
        f'#!/bin/sh\n[ "$2" = evals.throughput ] && exec {measure} "$@"\nexec {stub} "$@"\n'
    )
    (machine.bin / "python3").chmod(0o755)
    machine.env["WORK"] = str(machine.root / "made here")
    return machine


def serve(machine: Machine, *arguments: object) -> Run:
    return machine.run(str(H200 / "serve.sh"), *arguments)


def compare(machine: Machine, *arguments: object) -> Run:
    return machine.run(str(H200 / "compare.sh"), *arguments)


def test_serve_launches_the_arms_that_compare_measures(machine: Machine) -> None:
    command = compare(machine, "every-layer").command
    launch = Launch(machine.model, tp_size=2, server_args=tuple(command[command.index("--") + 1 :]))
    for arm in ("off", "replicated", "sharded", "auto"):
        served = serve(machine, "--model", machine.model, "--arm", arm)
        expected = ["--model-path", str(machine.model), "--port", "30000", *launch.spec(ARMS[arm]).args]
        assert served.command[:3] == ["python3", "-m", "sglang.launch_server"]
        assert Counter(served.command[3:]) == Counter(expected)
        assert served.env["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_the_pinned_sglang_knows_every_flag(machine: Machine) -> None:
    from sglang.srt.server_args import ServerArgs

    command = serve(machine, "--model", machine.model, "--port", 30666).command
    parser = argparse.ArgumentParser(exit_on_error=False)
    ServerArgs.add_cli_args(parser)
    args = parser.parse_args(command[3:])
    assert (args.model_path, args.tp_size, args.port) == (str(machine.model), 2, 30666)
    assert (args.chunked_prefill_size, args.load_format, args.disable_radix_cache) == (32768, "dummy", True)
    assert (args.enable_prefill_cp, args.cp_attn_weights) == (True, "sharded")


def test_without_a_model_serve_makes_one_and_with_weights_it_loads_them(machine: Machine) -> None:
    made = machine.root / "made here/every-layer"
    run = serve(machine, "--", "--log-level", "a b")
    assert run.command[run.command.index("--model-path") + 1] == str(made)
    assert run.command[-2:] == ["--log-level", "a b"]
    assert json.loads((made / "config.json").read_text())["num_hidden_layers"] == 6
    assert "--load-format" in run.command

    (machine.model / "model-1.safetensors").touch()
    assert "--load-format" not in serve(machine, "--model", machine.model).command


def measured(command: list[str]) -> dict[str, Any]:
    """What the harness understands of its command line."""
    assert command[:3] == ["python3", "-m", "evals.throughput"]
    app = typer.Typer()
    app.command()(throughput)
    return dict(typer.main.get_command(app).make_context("throughput", command[3:]).params)


def test_compare_measures_both_geometries_against_a_pristine_copy(machine: Machine) -> None:
    machine.env["CODES"] = "1,0"  # a goal missed with the first geometry does not keep the second from being measured
    run = compare(machine, "--gpus", "1,0", "--output", "some results", "--", "--log-level", "a b")
    assert run.code == 1, run.err
    upstream = machine.root / "made here" / f"sglang-{RELEASE}"
    series = read_series(series_dir(RELEASE), RELEASE)
    assert tool.status(open_tree(upstream), series).state is State.NOT_APPLIED
    assert tool.status(open_tree(machine.modules), series).state is State.APPLIED

    names = ("every-layer", "index-share")
    for record, name in zip(run.records, names, strict=True):
        assert record["env"]["CUDA_VISIBLE_DEVICES"] == "1,0"
        options = measured(record["command"])
        assert options["output"] == machine.work / "some results" / f"{name}.jsonl"
        assert (options["unpatched_path"], options["tp_size"]) == (upstream, 2)
        assert not any(options[name] for name in ("smoke", "arm", "lengths", "concurrency", "rounds"))
        assert options["server_args"][-4:] == ["--load-format", "dummy", "--log-level", "a b"]
        assert "--chunked-prefill-size" in options["server_args"]
        config = json.loads((options["model_path"] / "config.json").read_text())
        assert config["num_hidden_layers"] == {"every-layer": 6, "index-share": 8}[name]
        assert ("shared" in config["indexer_types"]) == (name == "index-share")


def test_compare_passes_a_shorter_load_on(machine: Machine) -> None:
    run = compare(
        machine, "index-share", "--load", "smoke", "--lengths", "1024,2048", "--concurrency", 2, "--rounds", 3
    )
    options = measured(run.command)
    assert options["output"].name == "index-share.jsonl"
    assert (options["smoke"], options["lengths"], options["concurrency"]) == (True, "1024,2048", "2")
    assert options["rounds"] == 3


def test_unusable_input_ends_the_comparison(machine: Machine) -> None:
    machine.env["CODES"] = "2,0"
    run = compare(machine)
    assert (run.code, len(run.records)) == (2, 1)


def torch_for_rocm(machine: Machine) -> None:
    torch(machine, cuda=None)


def one_gpu(machine: Machine) -> None:
    torch(machine, gpus=1)


def blackwell(machine: Machine) -> None:
    torch(machine, capability=(10, 0))


def unpatched(machine: Machine) -> None:
    tool.revert(open_tree(machine.modules))


def no_list(machine: Machine) -> None:
    machine.env["CUDA_VISIBLE_DEVICES"] = "0;1"


@pytest.mark.parametrize(
    ("script", "change", "sentence"),
    [
        ("serve.sh", torch_for_rocm, "is not built for CUDA"),
        ("serve.sh", one_gpu, "2 GPUs are needed, and of the GPUs 0,1 torch sees 1"),
        ("serve.sh", blackwell, "of compute capability 10.x, this configuration is for Hopper"),
        ("serve.sh", unpatched, "The patches are not applied to"),
        ("serve.sh", no_list, "--gpus takes numbers with commas, such as 0,1; not '0;1'"),
        ("compare.sh", one_gpu, "2 GPUs are needed, and of the GPUs 0,1 torch sees 1"),
        ("compare.sh", unpatched, "The patches are not applied to"),
    ],
)
def test_a_machine_that_will_not_do(
    machine: Machine, script: str, change: Callable[[Machine], object], sentence: str
) -> None:
    change(machine)
    machine.run(str(H200 / script)).assert_refused(script, sentence)
    assert not Path(machine.env["WORK"]).exists()


@pytest.mark.parametrize(
    ("script", "arguments", "sentence"),
    [
        ("serve.sh", ["--arm", "unpatched-off"], "--arm is one of: off replicated sharded auto; not 'unpatched-off'"),
        ("serve.sh", ["--tp-size", "4"], "Unknown argument --tp-size"),
        ("serve.sh", ["sharded"], "Unknown argument sharded"),
        ("serve.sh", ["--model", "no such model"], "There is no model directory 'no such model'"),
        ("serve.sh", ["--port", "http"], "--port takes a number from 1 to 65535"),
        ("compare.sh", ["six-layers"], "There is no geometry 'six-layers'"),
        ("compare.sh", ["--load", "short"], "--load is one of: full smoke; not 'short'"),
        ("compare.sh", ["--output"], "--output needs a value"),
        ("compare.sh", ["--output", "/dev/null/results"], "The directory '/dev/null/results' cannot be made"),
    ],
)
def test_arguments_that_make_no_sense(machine: Machine, script: str, arguments: list[str], sentence: str) -> None:
    machine.run(str(H200 / script), *arguments).assert_refused(script, sentence)


def test_a_comparison_without_its_libraries(machine: Machine) -> None:
    (machine.modules / "matplotlib.py").write_text("raise ImportError\n")
    compare(machine).assert_refused("compare.sh", "run `python3 -m pip install httpx matplotlib`")


@pytest.mark.parametrize("script", ["serve.sh", "compare.sh"])
def test_help_starts_nothing(machine: Machine, script: str) -> None:
    run = machine.run(str(H200 / script), "--help")
    assert (run.code, run.err, run.records) == (0, "", [])
    assert "\n  --gpus LIST " in run.out


def test_the_readme_names_what_is_there() -> None:
    for name in ("compare.sh", "serve.sh", "common.sh"):
        assert f"`{name}`" in README
        assert (H200 / name).is_file()
    assert "launch/h200/compare.sh --output results" in README
    for arm in ARMS:
        assert f"`{arm}`" in README, arm
