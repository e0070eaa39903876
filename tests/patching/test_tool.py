from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import os
import py_compile
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from py_compile import PycInvalidationMode

import pytest
from typer.testing import CliRunner

from sglang_cp.errors import PatchStateError, SglangCpError, UsageError
from sglang_cp.patching import cli, tool
from sglang_cp.patching import journal as journals
from sglang_cp.patching.diff import DiffError
from sglang_cp.patching.series import Series
from sglang_cp.patching.state import State, inspect
from sglang_cp.patching.tree import Tree, sha256_hex

from .conftest import (
    UPSTREAM_FILES,
    assert_patched,
    default_patches,
    diff_text,
    make_tree,
    snapshot,
    upstream_of,
    write_series,
)

ONE = "sglang/srt/one.py"


def state(tree: Tree, series: Series) -> State:
    return tool.status(tree, series).state


def test_apply_then_revert_gives_every_byte_mode_and_time_back(tree: Tree, series: Series) -> None:
    tree.file(ONE).chmod(0o640)
    before, times = snapshot(tree), {path: tree.file(path).stat().st_mtime_ns for path in UPSTREAM_FILES}
    assert state(tree, series) is State.NOT_APPLIED
    assert tool.apply(tree, series)
    assert state(tree, series) is State.APPLIED
    assert_patched(tree)
    assert tree.file(ONE).stat().st_mode & 0o777 == 0o640
    assert tool.revert(tree) is None
    assert snapshot(tree) == before
    assert {path: tree.file(path).stat().st_mtime_ns for path in UPSTREAM_FILES} == times
    assert tree.file(ONE).stat().st_mode & 0o777 == 0o640
    assert not (tree.package / "srt/fresh").exists()
    assert state(tree, series) is State.NOT_APPLIED


def test_apply_and_revert_are_idempotent(tree: Tree, series: Series) -> None:
    before = snapshot(tree)
    tool.revert(tree)
    assert snapshot(tree) == before
    tool.apply(tree, series)
    applied, times = snapshot(tree), {path: path.stat().st_mtime_ns for path in tree.root.rglob("*")}
    assert not tool.apply(tree, series)
    assert snapshot(tree) == applied
    assert {path: path.stat().st_mtime_ns for path in tree.root.rglob("*")} == times
    tool.revert(tree)
    tool.revert(tree)
    assert snapshot(tree) == before


@pytest.mark.parametrize("record", [True, False])
def test_an_edit_far_from_every_hunk_is_refused_and_named(tree: Tree, series: Series, record: bool) -> None:
    if not record:  # an editable install or a bare copy: the hashes shipped with the series decide
        shutil.rmtree(next(tree.root.glob("*.dist-info")))
        tree = Tree(tree.root)
    tree.file(ONE).write_bytes(UPSTREAM_FILES[ONE].replace(b"line_30 = 30", b"line_30 = 31"))
    before = snapshot(tree)
    with pytest.raises(PatchStateError, match=r"srt/one\.py; (re-install|restore)"):
        tool.apply(tree, series)
    assert snapshot(tree) == before
    assert tool.status(tree, series).files == (ONE,)
    assert state(tree, series) is State.EDITED


def test_wheel_record_decides_where_the_series_ships_no_hash(tree: Tree, tmp_path: Path) -> None:
    series = write_series(tmp_path / "bare", default_patches())
    tool.apply(tree, series)
    tool.revert(tree)
    tree.file(ONE).write_bytes(UPSTREAM_FILES[ONE] + b"# edited\n")
    with pytest.raises(PatchStateError, match=r"one\.py"):
        tool.apply(tree, series)
    shutil.rmtree(next(tree.root.glob("*.dist-info")))
    with pytest.raises(UsageError, match=r"hash of .*one\.py is unknown"):
        tool.apply(Tree(tree.root), series)


def test_another_release_is_refused_and_named(tmp_path: Path, series: Series) -> None:
    tree = make_tree(tmp_path / "other", "1.2.4")
    before = snapshot(tree)
    for command in (tool.apply, tool.status):
        with pytest.raises(UsageError, match=r"is SGLang 1\.2\.4, but the patches are made for 1\.2\.3"):
            command(tree, series)
    assert snapshot(tree) == before


def test_a_local_suffix_of_the_release_does_not_matter(tmp_path: Path, series: Series) -> None:
    tree = make_tree(tmp_path / "rocm", "1.2.3+rocm700")
    assert tool.apply(tree, series)
    assert state(tree, series) is State.APPLIED
    tool.revert(tree)


def test_a_patch_that_does_not_match_changes_nothing(tree: Tree, tmp_path: Path) -> None:
    patches = default_patches()
    shifted = b"".join(UPSTREAM_FILES[ONE].splitlines(keepends=True)[1:])
    patches["0004-late.patch"] = diff_text(ONE, shifted, shifted.replace(b"line_40 ", b"line_x "))
    touched = upstream_of(ONE, "sglang/srt/deep/two.py", "sglang/srt/deep/gone.py")
    series = write_series(tmp_path / "late", patches, touched)
    before = snapshot(tree)
    with pytest.raises(DiffError, match=r"0004-late\.patch does not apply: sglang/srt/one\.py"):
        tool.apply(tree, series)
    assert snapshot(tree) == before


def test_a_file_that_a_patch_creates_must_not_exist(tree: Tree, series: Series) -> None:
    tree.file("sglang/srt/fresh/new.py").parent.mkdir()
    tree.file("sglang/srt/fresh/new.py").write_bytes(b"mine = 1\n")
    with pytest.raises(PatchStateError, match=r"fresh/new\.py"):
        tool.apply(tree, series)
    assert tree.read("sglang/srt/fresh/new.py") == b"mine = 1\n"


def test_revert_refuses_to_destroy_later_edits(tree: Tree, series: Series) -> None:
    upstream = snapshot(tree)
    tool.apply(tree, series)
    tree.file(ONE).write_bytes(b"precious = True\n")
    tree.file("sglang/srt/deep/two.py").unlink()
    before = snapshot(tree)
    assert state(tree, series) is State.EDITED
    for command in (lambda: tool.revert(tree), lambda: tool.apply(tree, series)):
        with pytest.raises(PatchStateError, match=r"deep/two\.py, sglang/srt/one\.py; .*revert --force"):
            command()
        assert snapshot(tree) == before
    aside = tool.revert(tree, force=True)
    assert aside is not None
    assert (aside / ONE).read_bytes() == b"precious = True\n"
    shutil.rmtree(aside)
    assert snapshot(tree) == upstream


def test_apply_replaces_another_series(tree: Tree, series: Series, tmp_path: Path) -> None:
    upstream = snapshot(tree)
    newer_text = UPSTREAM_FILES[ONE].replace(b"line_5 ", b"line_five ")
    touched = upstream_of(ONE)
    newer = write_series(tmp_path / "newer", {"a.patch": diff_text(ONE, UPSTREAM_FILES[ONE], newer_text)}, touched)
    tool.apply(tree, series)
    assert state(tree, newer) is State.OUTDATED
    assert tool.apply(tree, newer)
    assert state(tree, newer) is State.APPLIED
    assert tree.read(ONE) == newer_text
    assert tree.read("sglang/srt/deep/gone.py") == UPSTREAM_FILES["sglang/srt/deep/gone.py"]
    tool.revert(tree)
    assert snapshot(tree) == upstream


def test_a_newer_series_that_does_not_match_leaves_the_old_one(tree: Tree, series: Series, tmp_path: Path) -> None:
    wrong = diff_text(ONE, b"nothing like it\n", b"other\n")
    newer = write_series(tmp_path / "newer", {"a.patch": wrong}, upstream_of(ONE))
    tool.apply(tree, series)
    before = snapshot(tree)
    with pytest.raises(DiffError, match=r"a\.patch does not apply"):
        tool.apply(tree, newer)
    assert snapshot(tree) == before


def test_reinstalled_sglang_is_patched_afresh(tree: Tree, series: Series) -> None:
    tool.apply(tree, series)
    for path, data in UPSTREAM_FILES.items():  # pip writes its files over ours and leaves the journal
        tree.file(path).write_bytes(data)
    tree.file("sglang/srt/fresh/new.py").unlink()
    assert state(tree, series) is State.NOT_APPLIED
    assert tool.apply(tree, series)
    assert_patched(tree)


def test_backups_of_another_release_never_overwrite_the_new_files(tree: Tree, series: Series) -> None:
    tool.apply(tree, series)
    tree.file("sglang/_version.py").write_text("__version__ = version = '1.3.0'\n")
    tree.file(ONE).write_bytes(b"new release\n")
    upgraded = Tree(tree.root)  # its deep/two.py still carries our patch, and its deep/gone.py is no more
    assert inspect(upgraded).state is State.HALF_APPLIED
    tool.revert(upgraded)
    assert tree.read(ONE) == b"new release\n"
    assert tree.read("sglang/srt/deep/two.py") == UPSTREAM_FILES["sglang/srt/deep/two.py"]
    assert tree.read("sglang/srt/deep/gone.py") is None
    assert tree.read("sglang/srt/fresh/new.py") is None
    assert not journals.has_traces(tree)


@pytest.mark.parametrize("damage", [b"", b'{"format": 1, "rel', b'{"format": 2}', b"[]", b"\xff"])
def test_a_damaged_journal_stops_everything(tree: Tree, series: Series, damage: bytes) -> None:
    tool.apply(tree, series)
    (tree.package / ".sglang_cp/manifest.json").write_bytes(damage)
    before = snapshot(tree)
    for command in (
        lambda: tool.apply(tree, series),
        lambda: tool.revert(tree),
        lambda: tool.revert(tree, force=True),
        lambda: tool.status(tree, series),
    ):
        with pytest.raises(PatchStateError, match=r"manifest\.json is damaged .*copy them back"):
            command()
        assert snapshot(tree) == before


def test_a_damaged_backup_is_not_restored(tree: Tree, series: Series) -> None:
    tool.apply(tree, series)
    (tree.package / ".sglang_cp/originals" / ONE).write_bytes(b"bad")
    before = snapshot(tree)
    with pytest.raises(PatchStateError, match=r"backup .*one\.py is damaged"):
        tool.revert(tree)
    assert snapshot(tree) == before


@pytest.mark.parametrize("failing_call", range(1, 5))
def test_an_error_while_replacing_rolls_back(
    tree: Tree, series: Series, monkeypatch: pytest.MonkeyPatch, failing_call: int
) -> None:
    before, replace, calls = snapshot(tree), os.replace, 0

    def full_disk(source: Path, target: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == failing_call:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full_disk)
    if failing_call <= 3:  # three files are moved into place
        with pytest.raises(UsageError, match="No space left on device"):
            tool.apply(tree, series)
        assert snapshot(tree) == before
    else:
        tool.apply(tree, series)
        assert_patched(tree)


def test_a_full_disk_before_the_first_replacement(tree: Tree, series: Series, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = snapshot(tree)
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(UsageError, match="No space left on device"):
        tool.apply(tree, series)
    assert snapshot(tree) == before


def test_a_read_only_tree_is_one_clear_sentence(tree: Tree, series: Series, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: object, **__: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    before = snapshot(tree)
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", read_only)
        with pytest.raises(UsageError, match=r"cannot be written \(Read-only file system\)"):
            tool.apply(tree, series)
        tool.revert(tree)  # nothing to revert: nothing to write
    assert snapshot(tree) == before
    tool.apply(tree, series)
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", read_only)
        assert not tool.apply(tree, series)
        with pytest.raises(UsageError, match="cannot be written"):
            tool.revert(tree)
    assert_patched(tree)


def test_symbolic_links_are_not_followed_out_of_the_tree(tree: Tree, series: Series, tmp_path: Path) -> None:
    elsewhere = tmp_path / "cache.py"
    elsewhere.write_bytes(UPSTREAM_FILES[ONE])
    tree.file(ONE).unlink()
    (tree.root / ONE).symlink_to(elsewhere)
    with pytest.raises(UsageError, match=r"one\.py is a symbolic link"):
        tool.apply(tree, series)
    (tree.root / ONE).unlink()
    shutil.move(tree.package / "srt", tmp_path / "srt")
    (tree.package / "srt").symlink_to(tmp_path / "srt")
    with pytest.raises(UsageError, match="is a symbolic link or lies behind one"):
        tool.apply(tree, series)
    assert elsewhere.read_bytes() == UPSTREAM_FILES[ONE]


@pytest.mark.parametrize("suffix", ["", ".new", ".old", ".lock"])
def test_links_in_place_of_the_journal_lead_nowhere(tree: Tree, series: Series, tmp_path: Path, suffix: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    if suffix != ".lock":
        elsewhere.mkdir()
    (tree.package / f".sglang_cp{suffix}").symlink_to(elsewhere)
    with contextlib.suppress(UsageError, PatchStateError):
        tool.apply(tree, series)
        tool.revert(tree)
    assert not elsewhere.exists() or list(elsewhere.iterdir()) == []
    for path, data in UPSTREAM_FILES.items():
        assert tree.read(path) == data, path


@pytest.mark.parametrize("restored", [False, True], ids=["deleted", "restored"])
@pytest.mark.parametrize("path", ["sglang/../outside.py", "../outside.py", "/ABSOLUTE/outside.py"])
def test_a_journal_that_names_a_file_outside_the_tree_changes_nothing(
    tree: Tree, series: Series, tmp_path: Path, path: str, restored: bool
) -> None:
    tool.apply(tree, series)
    path = path.replace("/ABSOLUTE", str(tmp_path))
    outside = tree.root / path
    outside.write_bytes(b"theirs")
    digests = {"before": sha256_hex(b"ours") if restored else None, "after": sha256_hex(b"theirs")}
    if restored and not Path(path).is_absolute():
        backup = tree.package / ".sglang_cp/originals" / path
        backup.parent.mkdir(parents=True, exist_ok=True)
        backup.write_bytes(b"ours")
    manifest = tree.package / ".sglang_cp/manifest.json"
    journal = json.loads(manifest.read_bytes())
    journal["files"].append({"path": path, **digests})
    manifest.write_text(json.dumps(journal))
    with pytest.raises((UsageError, PatchStateError)):
        tool.revert(tree, force=True)
    assert outside.read_bytes() == b"theirs"


def test_a_linked_package_and_hard_links_are_fine(tree: Tree, series: Series, tmp_path: Path) -> None:
    cache = tmp_path / "cache.py"  # installers link files from a cache
    os.link(tree.file(ONE), cache)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/sglang").symlink_to(tree.package)
    tool.apply(Tree(tmp_path / "linked"), series)
    assert_patched(tree)
    assert cache.read_bytes() == UPSTREAM_FILES[ONE]
    tool.revert(tree)


@pytest.mark.parametrize("mode", [PycInvalidationMode.TIMESTAMP, PycInvalidationMode.UNCHECKED_HASH])
def test_python_never_runs_stale_byte_code(tree: Tree, tmp_path: Path, mode: PycInvalidationMode) -> None:
    # The same size and the same second: all that Python compares.
    before, after = UPSTREAM_FILES[ONE], UPSTREAM_FILES[ONE].replace(b"line_7 = 7", b"line_7 = 9")
    series = write_series(tmp_path / "same", {"a.patch": diff_text(ONE, before, after)}, upstream_of(ONE))

    def imported_value() -> str:
        source = tree.file(ONE)
        code = f"import sys; sys.path.insert(0, {str(source.parent)!r}); import one; print(one.line_7)"
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        py_compile.compile(str(source), invalidation_mode=mode)
        assert Path(importlib.util.cache_from_source(str(source))).exists()
        return run.stdout.strip()

    assert imported_value() == "7"
    tool.apply(tree, series)
    assert imported_value() == "9"
    tool.revert(tree)
    assert imported_value() == "7"


@pytest.mark.parametrize("age", [0, -1000, 10**6])  # seconds; a clock may be wrong
def test_byte_code_kept_elsewhere_is_stale_too(tree: Tree, series: Series, age: int) -> None:
    # Under PYTHONPYCACHEPREFIX byte code is out of our reach; the time in whole seconds must tell.
    original = int(time.time()) - age
    os.utime(tree.file(ONE), (original, original))
    tool.apply(tree, series)
    assert int(tree.file(ONE).stat().st_mtime) > original


def test_errors_have_the_documented_exit_codes() -> None:
    assert (SglangCpError.exit_code, PatchStateError.exit_code, UsageError.exit_code) == (1, 1, 2)


@contextlib.contextmanager
def foreign_user() -> Iterator[None]:
    """Act as a user who owns nothing: file modes forbid root nothing."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize(("closed", "message"), [("sglang", "cannot be written"), ("sglang/srt", "could not be")])
def test_without_permission_nothing_changes(series: Series, closed: str, message: str) -> None:
    # "sglang/srt" closed: the journal can be written, the second replacement fails and the first is undone.
    with tempfile.TemporaryDirectory() as name:  # pytest's own directories are closed to other users
        tree = make_tree(Path(name, "site"))
        before = snapshot(tree)
        for directory in (tree.package, tree.package / "srt", tree.package / "srt/deep"):
            directory.chmod(0o777)
        Path(name).chmod(0o755)
        (tree.root / closed).chmod(0o555)
        with foreign_user(), pytest.raises(UsageError, match=rf"{message}.*Permission denied"):
            tool.apply(tree, series)
        assert snapshot(tree) == before


def test_patched_files_without_a_journal_are_not_called_free_of_patches(
    tree: Tree, series: Series, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool.apply(tree, series)
    shutil.rmtree(tree.package / journals.JOURNAL)
    found = tool.status(tree, series)
    assert found.state is State.EDITED
    assert "and delete sglang/srt/fresh/new.py, which SGLang does not have." in found.sentence()
    monkeypatch.setattr(cli, "_series", lambda: series)
    result = CliRunner().invoke(cli.app, ["revert", "--root", str(tree.root)])
    assert isinstance(result.exception, PatchStateError)
    assert "free of patches" not in result.output


def test_the_way_out_names_the_tree_it_speaks_of(tree: Tree, series: Series) -> None:
    command = f"run `sglang-cp patch apply --root {shlex.quote(str(tree.root))}`."
    assert tool.status(tree, series).sentence().endswith(command)


def test_status_tells_when_the_backups_are_gone(tree: Tree, series: Series) -> None:
    tool.apply(tree, series)
    shutil.rmtree(tree.package / journals.JOURNAL / "originals")
    with pytest.raises(PatchStateError, match=r"The backup .* is damaged"):
        tool.status(tree, series)
