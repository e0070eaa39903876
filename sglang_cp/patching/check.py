"""Checks of a patch series: headers, files, sizes; that it applies, reverses and leaves valid Python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from sglang_cp.errors import SglangCpError, UsageError
from sglang_cp.patching.diff import DiffError, apply_diff, reverse_diff
from sglang_cp.patching.series import ORIGINALS, Patch, Series, patch_names, read_series
from sglang_cp.patching.state import State, Status, inspect
from sglang_cp.patching.tool import Contents, edited, originals
from sglang_cp.patching.tree import Tree, sha256_hex

REQUIRED_FIELDS = ("Description", "Origin", "Forwarded", "Last-Update", "Removal")
MAX_CHANGED_LINES = 149
_FORWARDED = re.compile(r"https://\S+|(no|not-needed): \S")


def check(tree: Tree, directory: Path, release: str) -> list[str]:
    """Every problem of the series in ``directory``, tried on upstream's content of ``tree``."""
    problems = list(_file_problems(directory))
    try:
        series = read_series(directory, release)
    except UsageError as error:
        return problems or [str(error)]
    for patch in series.patches:
        problems += _patch_problems(patch)
    try:
        tree.require_release(release)
        contents = originals(tree, series, inspect(tree, series.digest))
        problems += _hash_problems(tree, series)
        if files := edited(tree, series, contents):
            problems.append(Status(tree, State.EDITED, None, files).sentence())
        problems += _application_problems(series, contents)
    except SglangCpError as error:
        problems.append(str(error))
    return list(dict.fromkeys(problems))


def _file_problems(directory: Path) -> Iterator[str]:
    try:
        names = patch_names(directory)
    except UsageError as error:
        yield str(error)
        return
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{name}: listed more than once in the series."
    for name in names:
        if not (directory / name).is_file():
            yield f"{name}: listed in the series, but there is no such file."
    for path in sorted(directory.iterdir()):
        if path.name not in {*names, "series", ORIGINALS}:
            yield f"{path.name}: not listed in the series."


def _patch_problems(patch: Patch) -> Iterator[str]:
    try:
        header = patch.header
    except UsageError as error:
        yield str(error)
        return
    for name in REQUIRED_FIELDS:
        values = header.get(name, ())
        if not any(values):
            yield f"{patch.name}: the header lacks {name}."
        if len(values) > 1:
            yield f"{patch.name}: the header has {name} {len(values)} times."
    updated, forwarded = patch.field("Last-Update"), patch.field("Forwarded")
    if updated and not _is_date(updated):
        yield f"{patch.name}: Last-Update must be a date like 2026-01-31, not {updated!r}."
    if forwarded and not _FORWARDED.match(forwarded):
        yield f"{patch.name}: Forwarded must be a URL or `no: why`, not {forwarded!r}."
    try:
        if patch.changed_lines > MAX_CHANGED_LINES:
            yield f"{patch.name}: changes {patch.changed_lines} lines, more than {MAX_CHANGED_LINES}."
    except DiffError as error:
        yield str(error)


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _hash_problems(tree: Tree, series: Series) -> Iterator[str]:
    listed, touched = set(series.originals), set(series.upstream_paths)
    if listed != touched:
        yield (
            f"{ORIGINALS} does not list exactly the files that the series touches "
            f"({', '.join(sorted(listed ^ touched))}); run `sglang-cp patch pin`."
        )
    for path, digest in series.originals.items():
        if tree.record.get(path, digest) != digest:
            yield f"{ORIGINALS}: the hash of {path} is not the one in the RECORD of SGLang's wheel."


def _application_problems(series: Series, contents: Contents) -> Iterator[str]:
    for patch in series.patches:
        before = contents
        try:
            contents = apply_diff(patch.diffs, before)
        except DiffError as error:
            yield f"{patch.name}: does not apply: {error}."
            return  # what follows builds on it
        try:
            if apply_diff(reverse_diff(patch.diffs), contents) != before:
                yield f"{patch.name}: reversing it does not give the same bytes back."
        except DiffError as error:
            yield f"{patch.name}: does not reverse: {error}."
        for diff in patch.diffs:
            content = contents[diff.path]
            if content is not None and diff.path.endswith(".py"):
                yield from _syntax_problems(patch, diff.path, content)


def _syntax_problems(patch: Patch, path: str, content: bytes) -> Iterator[str]:
    try:
        compile(content, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        yield f"{patch.name}: leaves {path} as Python that does not compile: {error}."


def pin_originals(tree: Tree, series: Series) -> int:
    """Write upstream's hashes of the touched files beside the series, from RECORD; returns how many.

    Raises UsageError if there is no RECORD for one of them, or if the tree's content is not what RECORD says.
    """
    tree.require_release(series.release)
    contents = originals(tree, series, inspect(tree, series.digest))
    lines = []
    for path in series.upstream_paths:
        digest = tree.record.get(path)
        if digest is None or digest != sha256_hex(contents[path]):
            raise UsageError(
                f"{tree.root / path} is not upstream's by the RECORD of a wheel of SGLang {series.release}; "
                "name an unedited wheel installation with --root."
            )
        lines.append(f"{digest}  {path}\n")
    (series.directory / ORIGINALS).write_text("".join(lines), encoding="utf-8")
    return len(lines)
