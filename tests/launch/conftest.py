"""A machine to launch on: a PATH with a recording ``python3``, a torch that sees GPUs, a model directory."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.launch import stub_python3

CHECKOUT = Path(__file__).parents[2]
SCRIPTS = CHECKOUT / "launch/glm-5.2-mxfp4-mi355x"

# What torch says of itself; it sees those of HIP_VISIBLE_DEVICES that exist.
TORCH = """\
import os

class version:
    hip = {hip!r}

class cuda:
    @staticmethod
    def device_count():
        return sum(int(gpu) < {gpus} for gpu in os.environ["HIP_VISIBLE_DEVICES"].split(","))
"""


@dataclass
class Machine:
    """Where the scripts run; ``interpreter`` answers what their checks ask of Python."""

    root: Path
    interpreter: Path = Path(sys.executable)
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for directory in (self.bin, self.modules, self.work):
            directory.mkdir()
        stub = shlex.join([sys.executable, stub_python3.__file__])
        (self.bin / "python3").write_text(f'#!/bin/sh\nexec {stub} "$@"\n')
        (self.bin / "python3").chmod(0o755)
        self.torch(hip="7.2.26015-fc0010cf6a", gpus=8)
        self.write_model(self.model)

    @property
    def bin(self) -> Path:
        return self.root / "bin"

    @property
    def modules(self) -> Path:
        """What Python finds before its own packages."""
        return self.root / "modules"

    @property
    def work(self) -> Path:
        """The directory that the scripts are started in."""
        return self.root / "work"

    @property
    def model(self) -> Path:
        return self.root / "a model"

    def torch(self, hip: str | None, gpus: int) -> None:
        """The torch that Python imports: its HIP version, and how many GPUs the machine has."""
        (self.modules / "torch.py").write_text(TORCH.format(hip=hip, gpus=gpus))

    def write_model(self, directory: Path, architecture: str = "GlmMoeDsaForCausalLM") -> None:
        directory.mkdir(exist_ok=True)
        (directory / "config.json").write_text(json.dumps({"architectures": [architecture]}, indent=2))

    def run(self, script: str, *arguments: object) -> Run:
        """Run a script to its end, in an environment that has of this process's nothing but the end of the PATH."""
        record = self.root / "record.jsonl"
        record.write_text("")
        env = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "PYTHONPATH": str(self.modules),
            "INTERPRETER": str(self.interpreter),
            "RECORD": str(record),
            **self.env,
        }
        command = [str(SCRIPTS / script), *map(str, arguments)]
        process = subprocess.Popen(
            command, cwd=self.work, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        out, err = process.communicate(timeout=60)
        records = [json.loads(line) for line in record.read_text().splitlines()]
        return Run(process.pid, process.returncode, out, err, records)


@dataclass(frozen=True)
class Run:
    """How a script ended, and what it ran."""

    pid: int
    code: int
    out: str
    err: str
    records: list[dict[str, Any]]

    @property
    def command(self) -> list[str]:
        """The command of the one record."""
        assert self.code == 0, self.err
        (record,) = self.records
        command: list[str] = record["command"]
        return command

    @property
    def env(self) -> dict[str, str]:
        (record,) = self.records
        env: dict[str, str] = record["env"]
        return env

    def assert_refused(self, script: str, sentence: str) -> None:
        """One sentence on stderr that contains this one, exit code 2, and nothing was started."""
        assert (self.code, self.out, self.records) == (2, "", []), self.err
        assert self.err.startswith(f"{script}: ")
        assert self.err.count("\n") == 1
        assert sentence in self.err


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    root = tmp_path / "a machine"
    root.mkdir()
    return Machine(root)


def base_interpreter() -> Path:
    """The Python that this environment was made from: without sglang-cp and SGLang."""
    return Path(os.path.realpath(sys.executable))
