"""The real series on upstream's real files: a copy of the installed release's, checked against its RECORD."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from sglang_cp.errors import PatchStateError, UsageError
from sglang_cp.patching import tool, verify_applied
from sglang_cp.patching.check import check
from sglang_cp.patching.series import Series, read_series
from sglang_cp.patching.state import inspect
from sglang_cp.patching.tree import Tree, open_tree
from sglang_cp.pin import read_pin, series_dir

from .conftest import snapshot

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def real_series() -> Series:
    release = read_pin().release
    return read_series(series_dir(release), release)


@pytest.fixture(scope="module")
def upstream_files(real_series: Series) -> Mapping[str, bytes]:
    """Upstream's bytes of the touched files, also when the installed SGLang is patched."""
    installed = open_tree()
    contents = tool.originals(installed, real_series, inspect(installed))
    return {path: data for path, data in contents.items() if data is not None}


@pytest.fixture
def copy(tmp_path: Path, upstream_files: Mapping[str, bytes]) -> Tree:
    """A tree with the files that the series touches, and what tells the release."""
    installed = open_tree()
    root = tmp_path / "a copy"
    for path in ("sglang/__init__.py", "sglang/_version.py"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(installed.file(path), root / path)
    for path, data in upstream_files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    metadata = next(installed.root.glob("sglang-*.dist-info"))
    shutil.copytree(metadata, root / metadata.name)
    return Tree(root)


def test_the_series_passes_every_check(copy: Tree, real_series: Series) -> None:
    assert check(copy, real_series.directory, real_series.release) == []


def test_revert_gives_the_bytes_of_the_wheels_record(copy: Tree, real_series: Series) -> None:
    before = snapshot(copy)
    assert tool.apply(copy, real_series)
    changed = {
        path
        for path in real_series.upstream_paths
        if hashlib.sha256(copy.file(path).read_bytes()).hexdigest() != copy.record[path]
    }
    assert changed == set(real_series.upstream_paths)
    tool.revert(copy)
    for path in real_series.upstream_paths:
        assert hashlib.sha256(copy.file(path).read_bytes()).hexdigest() == copy.record[path]
    assert snapshot(copy) == before


def test_start_up_check(copy: Tree, real_series: Series) -> None:
    with pytest.raises(PatchStateError, match=r"not applied to .*run `sglang-cp patch apply --root .*`"):
        verify_applied(copy.root)
    tool.apply(copy, real_series)
    start = time.process_time()
    verify_applied(copy.root)
    assert time.process_time() - start < 0.5  # seconds; it runs in every process of a server
    path = real_series.upstream_paths[0]
    patched = copy.file(path).read_bytes()
    copy.file(path).write_bytes(patched + b"\n")
    with pytest.raises(PatchStateError, match=f"changed after they were patched: {path}"):
        verify_applied(copy.root)
    copy.file(path).write_bytes((copy.package / ".sglang_cp/originals" / path).read_bytes())
    with pytest.raises(PatchStateError, match=rf"half applied .*without: {path}"):
        verify_applied(copy.root)
    copy.file(path).write_bytes(patched)
    verify_applied(copy.root)


def test_start_up_check_refuses_another_series_and_another_release(
    copy: Tree, real_series: Series, tmp_path: Path
) -> None:
    shutil.copytree(real_series.directory, tmp_path / "older")
    lines = (tmp_path / "older/series").read_text().splitlines(keepends=True)
    (tmp_path / "older/series").write_text("".join(lines[:-1]))
    tool.apply(copy, read_series(tmp_path / "older", real_series.release))
    with pytest.raises(PatchStateError, match="Another patch series"):
        verify_applied(copy.root)
    copy.file("sglang/_version.py").write_text("__version__ = version = '0.1'\n")
    with pytest.raises(UsageError, match=r"is SGLang 0\.1, but the patches are made for"):
        verify_applied(copy.root)


def test_start_up_check_needs_no_diff_library_and_no_sglang(copy: Tree, real_series: Series) -> None:
    tool.apply(copy, real_series)
    code = (
        "import pathlib, sys\n"
        "from sglang_cp.patching import verify_applied\n"
        "verify_applied(pathlib.Path(sys.argv[1]))\n"
        "print({'sglang', 'torch', 'unidiff', 'typer', 'rich'} & set(sys.modules) or 'none')\n"
    )
    command = [sys.executable, "-c", code, str(copy.root)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=CHECKOUT)
    assert (run.returncode, run.stdout.strip()) == (0, "none"), run.stderr


def cli(*arguments: object) -> tuple[int, str]:
    """Exit code and output of ``sglang-cp patch ...`` on a wide terminal."""
    command = [sys.executable, "-m", "sglang_cp.cli", "patch", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "200"}
    run = subprocess.run(command, capture_output=True, text=True, cwd=CHECKOUT, env=environment)
    assert "Traceback" not in run.stderr
    return run.returncode, run.stdout + run.stderr


def test_commands_from_check_to_revert(copy: Tree, real_series: Series) -> None:
    before, root = snapshot(copy), ("--root", copy.root)
    count = len(real_series.patches)
    code, output = cli("check", *root)
    assert (code, f"{count} patches" in output, "all checks passed" in output) == (0, True, True)
    assert cli("status", *root)[0] == 1
    assert cli("apply", *root) == (0, f"{count} patches applied to {copy.package}.\n")
    assert cli("apply", *root) == (0, f"{count} patches were already applied to {copy.package}.\n")
    code, output = cli("status", *root)
    assert (code, "The patches are applied" in output) == (0, True)
    assert cli("revert", *root) == (0, f"{copy.package} is free of patches.\n")
    assert snapshot(copy) == before


def test_command_line_on_an_edited_file(copy: Tree, real_series: Series) -> None:
    path = real_series.upstream_paths[0]
    data = copy.file(path).read_bytes()
    copy.file(path).write_bytes(data + b"# mine\n")
    for command in ("apply", "status", "check"):
        code, output = cli(command, "--root", copy.root)
        assert (code, path in output) == (1, True)
    copy.file(path).write_bytes(data)
    cli("apply", "--root", copy.root)
    copy.file(path).write_bytes(b"# mine\n")
    code, output = cli("revert", "--root", copy.root)
    assert (code, "--force" in output) == (1, True)
    code, output = cli("revert", "--force", "--root", copy.root)
    assert code == 0
    aside = next(copy.package.glob(".sglang_cp-edited-*"))
    assert str(aside) in output
    assert (aside / path).read_bytes() == b"# mine\n"
    assert copy.file(path).read_bytes() == data


def test_command_line_on_unusable_roots(tmp_path: Path, copy: Tree) -> None:
    for command in ("apply", "revert", "status", "check"):
        assert cli(command, "--root", tmp_path / "nowhere") == (
            2,
            f"sglang-cp: The root {tmp_path / 'nowhere'} is not a directory; name the one that contains sglang/.\n",
        )
    copy.file("sglang/_version.py").write_text("__version__ = version = '0.1'\n")
    for command in ("apply", "status"):
        code, output = cli(command, "--root", copy.root)
        assert (code, "is SGLang 0.1" in output) == (2, True)


def test_register_names_every_patch(real_series: Series) -> None:
    for arguments in (("list",), ("list", "--markdown")):
        code, output = cli(*arguments)
        assert code == 0
        for patch in real_series.patches:
            assert patch.name in output
            assert patch.synopsis.split()[0] in output
