"""The journal inside a patched tree, and the replacement of files under its protection.

``sglang/.sglang_cp/`` holds manifest.json (what each file hashes to before and after) and originals/
(upstream's bytes). It appears by one rename, complete, before the first file of the tree changes, and
disappears by one rename after the last file is restored. So a process may die anywhere: comparing the tree's
hashes with the manifest tells what was done, and originals/ undoes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from sglang_cp.errors import PatchStateError, UsageError
from sglang_cp.patching.tree import Tree, sha256_hex

FORMAT = 1
JOURNAL = ".sglang_cp"


@dataclass(frozen=True)
class FileChange:
    """sha256 (hex) of one file before and after patching; None where the file does not exist."""

    path: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Journal:
    """What was, or was about to be, applied to a tree."""

    release: str
    series: str
    files: tuple[FileChange, ...]


def read_journal(tree: Tree) -> Journal | None:
    """The tree's journal, None if it has none. Raises PatchStateError if it is damaged."""
    directory = tree.package / JOURNAL
    try:
        if directory.is_symlink():
            raise ValueError("its directory is a symbolic link")
        table = json.loads((directory / "manifest.json").read_bytes())
        if table["format"] != FORMAT:
            raise ValueError(f"format {table['format']} is not {FORMAT}")
        files = tuple(FileChange(**file) for file in table["files"])
        return Journal(table["release"], table["series"], files)
    except OSError as error:
        if not os.path.lexists(directory):
            return None
        raise PatchStateError(_damaged(tree, error)) from error
    except (ValueError, KeyError, TypeError) as error:
        raise PatchStateError(_damaged(tree, error)) from error


def _damaged(tree: Tree, error: Exception) -> str:
    directory = tree.package / JOURNAL
    return (
        f"The journal {directory / 'manifest.json'} is damaged ({error}), so nothing was changed; "
        f"upstream's files are in {directory / 'originals'}: copy them back over {tree.root} or "
        f"{tree.way_back}, then delete {directory}."
    )


def read_original(tree: Tree, file: FileChange) -> bytes | None:
    """Upstream's bytes from the journal, checked. Raises PatchStateError if they are damaged."""
    if file.before is None:
        return None
    backup = tree.package / JOURNAL / "originals" / file.path
    content = backup.read_bytes() if backup.is_file() else None
    if sha256_hex(content) != file.before:
        raise PatchStateError(f"The backup {backup} is damaged; {tree.way_back}, then delete {tree.package / JOURNAL}.")
    return content


def has_traces(tree: Tree) -> bool:
    """Whether the tree holds a journal, or anything that a killed process left."""
    return any(os.path.lexists(tree.package / f"{JOURNAL}{suffix}") for suffix in ("", ".new", ".old", ".lock"))


@contextlib.contextmanager
def locked(tree: Tree) -> Iterator[None]:
    """Hold the tree's lock, waiting for another process; sweep what a killed one left. Raises UsageError."""
    path = tree.package / f"{JOURNAL}.lock"
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise UsageError(
                f"{tree.package} cannot be written ({error.strerror}); run this as its owner, on a writable "
                "copy, or when the image is built."
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # The holder before us deletes the file: then what we hold is no longer the tree's lock.
            if _is_same_file(descriptor, path):
                _sweep(tree)
                try:
                    yield
                finally:
                    _sweep(tree)
                    path.unlink()
                return
        finally:
            os.close(descriptor)


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _sweep(tree: Tree) -> None:
    for suffix in ("new", "old"):
        left = tree.package / f"{JOURNAL}.{suffix}"
        if left.is_symlink():
            left.unlink()  # rmtree would leave it, and what is written next would go where it points
        shutil.rmtree(left, ignore_errors=True)


def begin(tree: Tree, journal: Journal, patched: Mapping[str, bytes | None]) -> None:
    """Write the journal, the originals and the patched files beside the tree's files; change none of them."""
    staging = tree.package / f"{JOURNAL}.new"
    for file in journal.files:
        if file.before is not None:
            original = staging / "originals" / file.path
            original.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree.file(file.path), original)
            _sync(original)
            if sha256_hex(original.read_bytes()) != file.before:
                raise PatchStateError(f"{tree.file(file.path)} changed while it was read; try again.")
        content = patched[file.path]
        if content is not None:
            target = staging / "patched" / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            if file.before is not None:
                _inherit(target, original)
            _sync(target)
    manifest = {"format": FORMAT, **asdict(journal)}
    (staging / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    _sync(staging / "manifest.json")
    for directory, _, _ in os.walk(staging, topdown=False):
        _sync(Path(directory))
    os.rename(staging, tree.package / JOURNAL)
    _sync(tree.package)


def _inherit(target: Path, original: Path) -> None:
    """Give the patched file the original's mode, and a time that no byte code of the original can carry."""
    shutil.copymode(original, target)
    # Python trusts byte code whose recorded time in whole seconds and size are the source's.
    seconds = max(time.time(), int(original.stat().st_mtime) + 1)
    os.utime(target, (seconds, seconds))


def install(tree: Tree, journal: Journal) -> None:
    """Put the patched files that ``begin`` prepared in place of the originals."""
    for file in journal.files:
        staged = tree.package / JOURNAL / "patched" / file.path
        _replace(tree, file.path, None if file.after is None else staged)
    shutil.rmtree(tree.package / JOURNAL / "patched")


def owned(tree: Tree, journal: Journal) -> tuple[FileChange, ...]:
    """Files that are the journal's to restore: all of them while SGLang is the release that was patched.

    Once it was re-installed as another one, only those that still hold exactly what was written into them: a
    backup must never overwrite a file of the new release.
    """
    if journal.release == tree.release:
        return journal.files
    return tuple(f for f in journal.files if f.after is not None and sha256_hex(tree.read(f.path)) == f.after)


def restore(tree: Tree, journal: Journal) -> None:
    """Put upstream's files back, whatever stands in their place, and end the journal."""
    files = owned(tree, journal)
    for file in files:
        read_original(tree, file)  # all backups must be good before the first file changes
    staged = tree.package / JOURNAL / "restored"
    for file in files:
        if file.before is None:
            _replace(tree, file.path, None)
        elif sha256_hex(tree.read(file.path)) != file.before:
            staged.unlink(missing_ok=True)
            shutil.copy2(tree.package / JOURNAL / "originals" / file.path, staged)
            _sync(staged)
            _replace(tree, file.path, staged)
    # The journal is gone at once, even if the deletion of its files is cut short.
    os.rename(tree.package / JOURNAL, tree.package / f"{JOURNAL}.old")
    _sync(tree.package)
    _sweep(tree)


def _replace(tree: Tree, path: str, source: Path | None) -> None:
    """Move ``source`` over a file of the tree (None: delete it), and drop the byte code of the old one."""
    target = tree.file(path)
    if source is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(source, target)
    else:
        target.unlink(missing_ok=True)
    for cached in (target.parent / "__pycache__").glob(f"{glob.escape(target.stem)}.*.pyc"):
        cached.unlink(missing_ok=True)
    if source is not None:
        _sync(target.parent)
        return
    # A directory that a patch had created goes with its last file.
    for directory in (target.parent / "__pycache__", target.parent, *target.parent.parents):
        if directory == tree.package:
            break
        with contextlib.suppress(OSError):
            directory.rmdir()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
