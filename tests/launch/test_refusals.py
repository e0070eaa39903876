"""Each launch that cannot succeed: one sentence and exit code 2, before anything is loaded."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_cp.patching.series import read_series
from sglang_cp.patching.tree import installed_root
from sglang_cp.pin import read_pin, series_dir
from tests.launch.conftest import Machine, base_interpreter

SERVERS = ("cp.sh", "baseline.sh", "production.sh")
RELEASE = read_pin().release


def sglang_tree(machine: Machine, release: str) -> Path:
    """An SGLang of some release that Python finds before the installed one."""
    package = machine.modules / "sglang"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "_version.py").write_text(f"__version__ = {release!r}\n")
    return package


def unpatched(machine: Machine) -> None:
    """Upstream's own files, as the patch tool set them aside."""
    installed = installed_root()
    assert installed is not None
    package = sglang_tree(machine, RELEASE)
    for path in read_series(series_dir(RELEASE), RELEASE).upstream_paths:
        (package.parent / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(installed / "sglang/.sglang_cp/originals" / path, package.parent / path)


def edited(machine: Machine) -> None:
    unpatched(machine)
    with (machine.modules / "sglang/srt/server_args.py").open("a") as file:
        file.write("# edited\n")


def no_python(machine: Machine) -> None:
    """A PATH with what the scripts need besides Python."""
    (machine.bin / "python3").unlink()
    for name in ("bash", "dirname", "grep", "cat"):
        path = shutil.which(name)
        assert path is not None
        (machine.bin / name).symlink_to(path)
    machine.env["PATH"] = str(machine.bin)


def without_package(machine: Machine) -> None:
    machine.interpreter = base_interpreter()


def broken_torch(machine: Machine) -> None:
    (machine.modules / "torch.py").write_text("raise OSError('libamdhip64.so: cannot open shared object file')\n")


def remove_config(machine: Machine) -> None:
    (machine.model / "config.json").unlink()


def other_model(machine: Machine) -> None:
    machine.write_model(machine.model, "Glm4MoeForCausalLM")


STATES: dict[str, tuple[Callable[[Machine], object], str]] = {
    "model without config": (remove_config, "holds no model (no config.json)"),
    "other model": (other_model, "holds another model than GLM-5.x"),
    "no python": (no_python, "There is no python3 on the PATH"),
    "no package": (without_package, "sglang-cp is not installed for"),
    "other release": (
        lambda machine: sglang_tree(machine, "0.5.14"),
        f"is SGLang 0.5.14, but the patches are made for {RELEASE}",
    ),
    "unpatched": (unpatched, "The patches are not applied to"),
    "edited": (edited, "are not those of SGLang"),
    "no torch": (broken_torch, "-c 'import torch'` fails"),
    "torch for CUDA": (lambda machine: machine.torch(hip=None, gpus=8), "is not built for ROCm"),
    "other ROCm": (
        lambda machine: machine.torch(hip="7.0.51831", gpus=8),
        "ROCm 7.0.51831, this configuration is for ROCm 7.2",
    ),
    "longer ROCm": (
        lambda machine: machine.torch(hip="7.20.1", gpus=8),
        "ROCm 7.20.1, this configuration is for ROCm 7.2",
    ),
    "no GPU": (lambda machine: machine.torch(hip="7.2.1", gpus=0), "of the GPUs 4,5,6,7 torch sees 0"),
    "four GPUs": (
        lambda machine: machine.torch(hip="7.2.1", gpus=7),
        "4 GPUs are needed, and of the GPUs 4,5,6,7 torch sees 3",
    ),
}


@pytest.mark.parametrize("state", STATES)
def test_a_machine_that_cannot_serve(machine: Machine, state: str) -> None:
    make, sentence = STATES[state]
    make(machine)
    machine.run("cp.sh", "--model", machine.model).assert_refused("cp.sh", sentence)


def test_a_port_in_use(machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        run = machine.run("cp.sh", "--model", machine.model, "--port", port)
    run.assert_refused("cp.sh", f"Port {port} is in use")


@pytest.mark.parametrize("script", SERVERS)
def test_every_script_checks(machine: Machine, script: str) -> None:
    missing = machine.root / "no such model"
    machine.run(script, "--model", missing).assert_refused(script, f"There is no model directory '{missing}'")
    unpatched(machine)
    machine.run(script, "--model", machine.model).assert_refused(script, "The patches are not applied to")


@pytest.mark.parametrize(
    ("script", "arguments", "sentence"),
    [
        ("cp.sh", ["--tp-size", "8"], "Unknown argument --tp-size"),
        ("cp.sh", ["-v"], "Unknown argument -v"),
        ("cp.sh", ["sharded"], "Unknown argument sharded"),
        ("cp.sh", ["--arm"], "--arm needs a value"),
        ("cp.sh", ["--arm", "off"], "--arm is one of: sharded replicated; not 'off'"),
        ("cp.sh", ["--arm", ""], "--arm is one of: sharded replicated; not ''"),
        ("baseline.sh", ["--arm", "sharded"], "--arm is one of: off; not 'sharded'"),
        ("production.sh", ["--arm", "auto"], "--arm is one of: sharded replicated off; not 'auto'"),
        ("cp.sh", ["--gpus", "0 1 2 3"], "--gpus takes numbers with commas, such as 4,5,6,7; not '0 1 2 3'"),
        ("cp.sh", ["--gpus", "0,1,2,"], "--gpus takes numbers with commas"),
        ("cp.sh", ["--port", "http"], "--port takes a number from 1 to 65535; not 'http'"),
        ("cp.sh", ["--port", "65536"], "--port takes a number from 1 to 65535; not '65536'"),
        ("cp.sh", ["--port", "0"], "--port takes a number from 1 to 65535; not '0'"),
        ("cp.sh", ["--model", ""], "There is no model directory ''"),
    ],
)
def test_arguments_that_make_no_sense(machine: Machine, script: str, arguments: list[str], sentence: str) -> None:
    machine.env["MODEL_PATH"] = str(machine.model)
    machine.run(script, *arguments).assert_refused(script, sentence)


def test_four_gpus_are_needed_whatever_their_numbers(machine: Machine) -> None:
    run = machine.run("cp.sh", "--model", machine.model, "--gpus", "0,1,2")
    run.assert_refused("cp.sh", "4 GPUs are needed, and of the GPUs 0,1,2 torch sees 3")
    assert machine.run("cp.sh", "--model", machine.model, "--gpus", "0,1,2,3").code == 0
