"""kill -9 at every step that changes the disk, and two processes at once: real processes, no mocks of the tool."""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_cp.patching import journal as journals
from sglang_cp.patching import tool
from sglang_cp.patching.series import Series
from sglang_cp.patching.state import State
from sglang_cp.patching.tree import Tree

from .conftest import RELEASE, UPSTREAM_FILES, assert_patched, diff_text, make_tree, snapshot, upstream_of, write_series

# The calls by which the tool changes the disk.
DISK_CALLS: tuple[tuple[object, tuple[str, ...]], ...] = (
    (os, ("replace", "rename", "fsync", "unlink", "rmdir", "mkdir", "utime")),
    (Path, ("write_bytes", "write_text", "unlink", "rmdir", "mkdir")),
    (shutil, ("copy2", "copymode")),
)


def run_victim(action: Callable[[], object], fatal: int) -> bool:
    """Run in a child that kills itself at its ``fatal``-th step; False if it ended before it got there.

    A step is the moment just before or just after a call that changes the disk.
    """
    if (child := os.fork()) == 0:
        steps = itertools.count(1)

        def step() -> None:
            if next(steps) == fatal:
                os.kill(os.getpid(), signal.SIGKILL)

        def deadly(function: Callable[..., object]) -> Callable[..., object]:
            def wrapper(*args: object, **kwargs: object) -> object:
                step()
                result = function(*args, **kwargs)
                step()
                return result

            return wrapper

        try:
            for owner, names in DISK_CALLS:
                for name in names:
                    setattr(owner, name, deadly(getattr(owner, name)))
            action()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def run_processes(code: str, *arguments: object, count: int) -> None:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    runs = [
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
        for _ in range(count)
    ]
    for run in runs:
        _, errors = run.communicate(timeout=60)
        assert run.returncode == 0, errors


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Series, Series]:
    """A small series (a change, a creation, a deletion) and another one, as from an older version."""
    base = tmp_path_factory.mktemp("kill")
    one, two, gone, new = (f"sglang/srt/{name}.py" for name in ("one", "deep/two", "deep/gone", "fresh/new"))
    text = UPSTREAM_FILES[one]
    patches = {
        "a.patch": diff_text(one, text, b"seam = 1\n" + text),
        "b.patch": diff_text(new, None, b"new = 1\n") + diff_text(gone, UPSTREAM_FILES[gone], None),
    }
    series = write_series(base / "series", patches, upstream_of(one, gone))
    older_patches = {
        "a.patch": diff_text(one, text, b"older = 1\n" + text)
        + diff_text(two, UPSTREAM_FILES[two], UPSTREAM_FILES[two] + b"\n")
    }
    older = write_series(base / "older", older_patches, upstream_of(one, two))
    return series, older


@pytest.mark.parametrize("scenario", ["apply", "revert", "upgrade"])
def test_killed_at_every_step(pair: tuple[Series, Series], tmp_path: Path, scenario: str) -> None:
    series, older = pair
    states = []
    for fatal in itertools.count(1):
        tree = make_tree(tmp_path / str(fatal))
        upstream = snapshot(tree)
        if scenario != "apply":
            tool.apply(tree, series if scenario == "revert" else older)
        action = functools.partial(tool.revert if scenario == "revert" else tool.apply, tree)
        if not run_victim(action if scenario == "revert" else functools.partial(action, series), fatal):
            break
        found = tool.status(tree, series)
        states.append(found.state)
        # What the state says is what the tree holds: upstream's files, or a mixture that is owned up to.
        content = {path: data for path, data in snapshot(tree).items() if ".sglang_cp" not in path}
        assert (found.state is State.NOT_APPLIED) == (content == upstream)
        if found.state is State.HALF_APPLIED:
            assert found.files
            assert "sglang-cp patch revert" in found.sentence()
        # Both ways out work: forwards on even steps, and back.
        if fatal % 2 == 0:
            tool.apply(tree, series)
            assert tree.read("sglang/srt/fresh/new.py") == b"new = 1\n"
            assert tool.status(tree, series).state is State.APPLIED
        tool.revert(tree)
        assert snapshot(tree) == upstream
        assert not journals.has_traces(tree)
    # Killed before, between and after the replacements.
    assert {State.HALF_APPLIED, State.NOT_APPLIED, State.APPLIED} <= set(states)
    assert len(states) > 40


APPLY_OR_REVERT = """
import pathlib, sys
from sglang_cp.patching import tool
from sglang_cp.patching.series import read_series
from sglang_cp.patching.tree import Tree

command, root, series, release = sys.argv[1:]
if command == "apply":
    tool.apply(Tree(pathlib.Path(root)), read_series(pathlib.Path(series), release))
else:
    tool.revert(Tree(pathlib.Path(root)))
"""


def test_processes_at_once(tree: Tree, series: Series) -> None:
    upstream = snapshot(tree)
    for _ in range(2):
        run_processes(APPLY_OR_REVERT, "apply", tree.root, series.directory, RELEASE, count=3)
        assert_patched(tree)
        assert tool.status(tree, series).state is State.APPLIED
        run_processes(APPLY_OR_REVERT, "revert", tree.root, series.directory, RELEASE, count=3)
        assert snapshot(tree) == upstream


LOCK_OFTEN = """
import pathlib, sys, time
from sglang_cp.patching.journal import locked
from sglang_cp.patching.tree import Tree

root = pathlib.Path(sys.argv[1])
for _ in range(30):
    with locked(Tree(root)):
        (root / "inside").touch(exist_ok=False)
        time.sleep(0.002)
        (root / "inside").unlink()
"""


def test_one_process_at_a_time_holds_the_lock(tree: Tree) -> None:
    # The holder deletes its lock file: one that waited on that file holds nothing, and must take the new one.
    run_processes(LOCK_OFTEN, tree.root, count=4)
    assert not journals.has_traces(tree)


def test_what_a_killed_process_left_is_not_in_the_way(tree: Tree, series: Series) -> None:
    for left in (".sglang_cp.new/patched/sglang/srt/one.py/in the way", ".sglang_cp.old/originals"):
        (tree.package / left).mkdir(parents=True)
    (tree.package / ".sglang_cp.lock").touch()
    assert tool.status(tree, series).state is State.NOT_APPLIED
    tool.apply(tree, series)
    assert_patched(tree)
    assert [path.name for path in tree.package.glob(".sglang_cp*")] == [".sglang_cp"]
