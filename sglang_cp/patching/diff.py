"""Unified diffs, applied with zero fuzz: pure functions from bytes to bytes.

unidiff parses; this module turns its result into an exact replacement of lines at exact positions, in either
direction. Text is decoded as latin-1, which maps every byte to one character and back, so that encodings,
carriage returns and a missing newline at the end of a file survive untouched.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sglang_cp.errors import UsageError

# Lines that may stand outside hunks. unidiff skips any other line as "patch info", among them the surplus
# lines of a hunk with a wrong length; renames, mode changes and binary diffs are not supported here.
_OUTSIDE_HUNKS = re.compile(
    r"diff --git |index |new file mode 100644$|deleted file mode |--- |\+\+\+ |@@ |"
    r"\\ No newline at end of file$|$"
)


class DiffError(UsageError):
    """A diff is malformed, or does not match the content that it is applied to."""


@dataclass(frozen=True)
class Hunk:
    """Replace the lines ``old`` at ``old_index`` by ``new``, which then stand at ``new_index`` (from 0)."""

    old_index: int
    old: tuple[str, ...]
    new_index: int
    new: tuple[str, ...]

    def reversed(self) -> Hunk:
        return Hunk(self.new_index, self.new, self.old_index, self.old)


@dataclass(frozen=True)
class FileDiff:
    """The change of one file; ``path`` is relative to the directory that contains the package."""

    path: str
    hunks: tuple[Hunk, ...]
    creates: bool
    deletes: bool
    changed_lines: int

    def reversed(self) -> FileDiff:
        hunks = tuple(hunk.reversed() for hunk in self.hunks)
        return FileDiff(self.path, hunks, self.deletes, self.creates, self.changed_lines)


def parse_diff(data: bytes, package: str = "sglang") -> tuple[FileDiff, ...]:
    """Parse a unified diff whose paths are ``a/<package>/...`` and ``b/<package>/...``; raises DiffError."""
    try:
        from unidiff import PatchSet, UnidiffParseError
    except ImportError as error:
        raise UsageError("The patch tool needs the package unidiff: run `pip install unidiff`.") from error
    text = data.decode("latin-1")
    if not text.endswith("\n"):
        raise DiffError("the diff is empty or its last line is cut short (no newline at its end)")
    try:
        patch_set = PatchSet(io.StringIO(text))
    except UnidiffParseError as error:
        raise DiffError(f"not a unified diff: {error}") from error
    in_hunks = {line.diff_line_no for file in patch_set for hunk in file for line in hunk}
    for number, line in enumerate(io.StringIO(text), start=1):
        if number not in in_hunks and not _OUTSIDE_HUNKS.match(line):
            raise DiffError(f"line {number} of the diff belongs to no hunk: {line.rstrip()!r}")
    files = tuple(_file_diff(file, package) for file in patch_set)
    if not files:
        raise DiffError("the diff changes no file")
    if len({file.path for file in files}) < len(files):
        raise DiffError("the diff names a file twice")
    return files


def _file_diff(file: Any, package: str) -> FileDiff:
    creates, deletes = file.source_file == "/dev/null", file.target_file == "/dev/null"
    old, new = file.source_file.removeprefix("a/"), file.target_file.removeprefix("b/")
    path: str = new if creates else old
    parts = path.split("/")
    if not (creates or deletes or old == new) or parts[0] != package or {"", ".", ".."} & set(parts):
        raise DiffError(f"paths must be a/{package}/... and b/{package}/..., the same on both sides: {path!r}")
    if not file:
        raise DiffError(f"{path} has no hunk")
    return FileDiff(path, tuple(_hunk(hunk) for hunk in file), creates, deletes, file.added + file.removed)


def _hunk(hunk: Any) -> Hunk:
    old: list[str] = []
    new: list[str] = []
    sides: list[list[str]] = []
    for line in hunk:
        if line.line_type == "\\":  # "No newline at end of file" speaks of the line before it
            for side in sides:
                side[-1] = side[-1].removesuffix("\n")
        else:
            sides = {"-": [old], "+": [new], " ": [old, new]}.get(line.line_type, [])
            for side in sides:
                side.append(line.value)
    # An empty side is placed after the line that its header names, any other begins at that line.
    old_index = hunk.source_start - 1 if old else hunk.source_start
    new_index = hunk.target_start - 1 if new else hunk.target_start
    return Hunk(old_index, tuple(old), new_index, tuple(new))


def apply_file_diff(diff: FileDiff, content: bytes | None) -> bytes | None:
    """Content of the file after the diff; None stands for a file that does not exist. Raises DiffError."""
    if (content is None) != diff.creates:
        raise DiffError(f"{diff.path} {'already exists' if diff.creates else 'does not exist'}")
    lines = list(io.StringIO((content or b"").decode("latin-1")))
    result: list[str] = []
    cursor = 0
    for hunk in diff.hunks:
        end = hunk.old_index + len(hunk.old)
        if hunk.old_index < cursor or tuple(lines[hunk.old_index : end]) != hunk.old:
            raise DiffError(f"{diff.path} does not match the hunk at line {hunk.old_index + 1}")
        result += lines[cursor : hunk.old_index]
        if len(result) != hunk.new_index:
            raise DiffError(f"{diff.path}: the hunk at line {hunk.old_index + 1} states a wrong new position")
        result += hunk.new
        cursor = end
    result += lines[cursor:]
    if any(not line.endswith("\n") for line in result[:-1]):
        raise DiffError(f"{diff.path}: a line without newline would end up inside the file")
    if diff.deletes and result:
        raise DiffError(f"{diff.path} is to be deleted, yet the hunks leave lines of it")
    return None if diff.deletes else "".join(result).encode("latin-1")


def apply_diff(diffs: tuple[FileDiff, ...], contents: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
    """Contents by path after the diffs; ``contents`` must hold every path they name. Raises DiffError."""
    return {**contents, **{diff.path: apply_file_diff(diff, contents[diff.path]) for diff in diffs}}


def reverse_diff(diffs: tuple[FileDiff, ...]) -> tuple[FileDiff, ...]:
    """The diffs that undo ``diffs``."""
    return tuple(diff.reversed() for diff in diffs)
