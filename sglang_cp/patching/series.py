"""A patch series on disk: an ordered list of patch files, each a DEP-3 header followed by a unified diff.

``series`` lists one patch file a line, ``#`` begins a comment. ``originals.sha256`` (the format of sha256sum)
holds upstream's hash of every file that the series touches; written by ``sglang-cp patch pin``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.parser import Parser
from functools import cached_property
from pathlib import Path

from sglang_cp.errors import UsageError
from sglang_cp.patching.diff import DiffError, FileDiff, parse_diff

ORIGINALS = "originals.sha256"
_DIFF_START = re.compile(rb"^(diff --git |--- (a/|/dev/null))", re.MULTILINE)
_HASH_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")


@dataclass(frozen=True)
class Patch:
    """One patch file: its name and bytes."""

    name: str
    data: bytes

    @cached_property
    def _diff_start(self) -> int:
        match = _DIFF_START.search(self.data)
        return match.start() if match else len(self.data)

    @cached_property
    def header(self) -> Mapping[str, tuple[str, ...]]:
        """DEP-3 fields: name to values (several if the field is repeated), each with its lines stripped."""
        try:
            text = self.data[: self._diff_start].decode("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(f"The header of {self.name} is not UTF-8: {error}.") from error
        message = Parser().parsestr(text, headersonly=True)
        return {
            name: tuple("\n".join(map(str.strip, value.splitlines())) for value in message.get_all(name, []))
            for name in message
        }

    def field(self, name: str) -> str:
        """First value of a header field on one line, or an empty string."""
        return " ".join(self.header.get(name, ("",))[0].split())

    @property
    def synopsis(self) -> str:
        """First line of the description: what the patch does; the lines after it say why."""
        return self.header.get("Description", ("",))[0].partition("\n")[0]

    @cached_property
    def diffs(self) -> tuple[FileDiff, ...]:
        try:
            return parse_diff(self.data[self._diff_start :])
        except DiffError as error:
            raise DiffError(f"Patch {self.name}: {error}.") from error

    @property
    def changed_lines(self) -> int:
        return sum(diff.changed_lines for diff in self.diffs)


@dataclass(frozen=True)
class Series:
    """The patches for one release in order, and upstream's sha256 (hex) of the files that they touch."""

    directory: Path
    release: str
    patches: tuple[Patch, ...]
    originals: Mapping[str, str]

    @property
    def digest(self) -> str:
        """sha256 over the release and every patch: two series are the same if their digests are."""
        digest = hashlib.sha256(self.release.encode())
        for patch in self.patches:
            digest.update(f"\n{patch.name} {len(patch.data)}\n".encode() + patch.data)
        return digest.hexdigest()

    @property
    def paths(self) -> tuple[str, ...]:
        """Every file that the series touches, relative to the directory that contains the package."""
        return tuple(sorted({diff.path for patch in self.patches for diff in patch.diffs}))

    @property
    def upstream_paths(self) -> tuple[str, ...]:
        """Those of ``paths`` that exist upstream, which the series does not create itself."""
        diffs = [diff for patch in self.patches for diff in patch.diffs]
        creates = {diff.path: diff.creates for diff in reversed(diffs)}  # of a path, the first diff decides
        return tuple(path for path in self.paths if not creates[path])


def patch_names(directory: Path) -> list[str]:
    """Names in the file ``series``, in order, duplicates kept. Raises UsageError if there is none."""
    try:
        lines = (directory / "series").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise UsageError(f"There is no patch series in {directory} (the file `series` is missing).") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The patch series in {directory} cannot be read: {error}.") from error
    names = [name for line in lines if (name := line.partition("#")[0].strip())]
    if not names:
        raise UsageError(f"The patch series in {directory} lists no patch.")
    return names


def read_series(directory: Path, release: str) -> Series:
    """Read the series; headers and diffs are parsed only when asked for. Raises UsageError."""
    names = patch_names(directory)
    for name in names:
        if Path(name).name != name:
            raise UsageError(f"The patch series names {name!r}, which is not a file beside it.")
    if len(set(names)) < len(names):
        raise UsageError(f"The patch series in {directory} lists a patch twice.")
    try:
        patches = tuple(Patch(name, (directory / name).read_bytes()) for name in names)
        hashes = directory / ORIGINALS
        text = hashes.read_text(encoding="utf-8") if hashes.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The patch series in {directory} cannot be read: {error}.") from error
    originals = {}
    for line in text.splitlines():
        match = _HASH_LINE.fullmatch(line)
        if match is None:
            raise UsageError(f"{hashes} has a malformed line: {line!r}; write it with `sglang-cp patch pin`.")
        originals[match[2]] = match[1]
    return Series(directory, release, patches, originals)
