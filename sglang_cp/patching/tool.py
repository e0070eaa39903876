"""Apply and revert a patch series: all or nothing, one process at a time."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from sglang_cp.errors import PatchStateError, UsageError
from sglang_cp.patching import journal as journals
from sglang_cp.patching.diff import DiffError, apply_diff
from sglang_cp.patching.journal import FileChange, Journal
from sglang_cp.patching.series import ORIGINALS, Series
from sglang_cp.patching.state import State, Status, inspect
from sglang_cp.patching.tree import Tree, sha256_hex

Contents = dict[str, bytes | None]


def status(tree: Tree, series: Series) -> Status:
    """State of the tree; an unpatched one is EDITED if files to be patched are not upstream's."""
    tree.require_release(series.release)
    found = inspect(tree, series.digest)
    if found.state is State.NOT_APPLIED and (files := edited(tree, series, originals(tree, series, found))):
        return _not_upstreams(tree, series, files)
    if found.journal is not None:
        for file in journals.owned(tree, found.journal):
            journals.read_original(tree, file)  # a patched tree without its backups cannot be reverted: say so now
    return found


def _not_upstreams(tree: Tree, series: Series, files: tuple[str, ...]) -> Status:
    foreign = tuple(path for path in files if path not in series.upstream_paths)
    return Status(tree, State.EDITED, None, files, foreign)


def originals(tree: Tree, series: Series, found: Status) -> Contents:
    """Upstream's content of every file that the series touches: from the journal's backups, else the tree."""
    backups: Contents = {}
    if found.journal is not None:
        files = journals.owned(tree, found.journal)
        backups = {file.path: journals.read_original(tree, file) for file in files}
    return {path: backups[path] if path in backups else tree.read(path) for path in series.paths}


def edited(tree: Tree, series: Series, contents: Contents) -> tuple[str, ...]:
    """Files whose content is not upstream's, by the hashes of the series or of the wheel's RECORD."""
    known = {**tree.record, **series.originals}
    if unknown := [path for path in series.upstream_paths if path not in known]:
        raise UsageError(
            f"Upstream's hash of {', '.join(unknown)} is unknown: neither {series.directory / ORIGINALS} nor "
            f"a RECORD beside {tree.package} has it; run `sglang-cp patch pin` on an installed wheel."
        )
    return tuple(path for path in series.paths if sha256_hex(contents[path]) != known.get(path))


def patched(series: Series, contents: Contents) -> Contents:
    """Contents after the whole series. Raises DiffError."""
    for patch in series.patches:
        try:
            contents = apply_diff(patch.diffs, contents)
        except DiffError as error:
            raise DiffError(f"Patch {patch.name} does not apply: {error}.") from error
    return contents


def apply(tree: Tree, series: Series) -> bool:
    """Apply the series; False if it was applied already.

    A half-applied series and another one are replaced by way of upstream's files. Raises UsageError or
    PatchStateError if the tree's release is another, its files are edited or a patch does not match, with the
    tree as it was; or if the tree cannot be written, with the tree as it was or unpatched.
    """
    tree.require_release(series.release)
    if inspect(tree, series.digest).state is State.APPLIED:
        return False
    with _writing(tree):
        found = inspect(tree, series.digest)
        if found.state is State.APPLIED:
            return False
        if found.state is State.EDITED:
            raise PatchStateError(found.sentence())
        before = originals(tree, series, found)
        if files := edited(tree, series, before):
            raise PatchStateError(_not_upstreams(tree, series, files).sentence())
        after = patched(series, before)
        changes = (FileChange(path, sha256_hex(before[path]), sha256_hex(after[path])) for path in series.paths)
        changes = (change for change in changes if change.before != change.after)
        journal = Journal(tree.release, series.digest, tuple(changes))
        if found.journal is not None:
            journals.restore(tree, found.journal)
        journals.begin(tree, journal, after)
        try:
            journals.install(tree, journal)
        except BaseException:
            journals.restore(tree, journal)
            raise
    return True


def revert(tree: Tree, force: bool = False) -> Path | None:
    """Give the tree upstream's bytes back, whichever series is applied; does nothing if none is.

    Files changed after patching are left alone and named in a PatchStateError; with ``force`` they are copied
    into the directory that is returned before they are overwritten. Needs no patch series, only the journal.
    """
    if not journals.has_traces(tree):
        return None
    with _writing(tree):
        found = inspect(tree)
        aside = None
        if found.state is State.EDITED:
            if not force:
                raise PatchStateError(found.sentence())
            aside = _set_aside(tree, found.files)
        if found.journal is not None:
            journals.restore(tree, found.journal)
    return aside


def _set_aside(tree: Tree, files: tuple[str, ...]) -> Path:
    aside = tree.package / f".sglang_cp-edited-{time.time_ns()}"
    for path in files:
        if (content := tree.read(path)) is not None:
            (aside / path).parent.mkdir(parents=True, exist_ok=True)
            (aside / path).write_bytes(content)
    return aside


@contextlib.contextmanager
def _writing(tree: Tree) -> Iterator[None]:
    """Hold the tree's lock; an error of the file system (disk full, read-only) becomes one sentence."""
    with journals.locked(tree):
        try:
            yield
        except (OSError, shutil.Error) as error:
            raise UsageError(
                f"{tree.package} could not be changed ({error}); {tree.command('status')} tells its state."
            ) from error
