"""A small fake SGLang and small synthetic series, written with difflib."""

from __future__ import annotations

import base64
import difflib
import hashlib
import io
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from sglang_cp.patching.series import ORIGINALS, Series, read_series
from sglang_cp.patching.tree import Tree

RELEASE = "1.2.3"
HEADER = """\
Description: Let the seam call us
 so that the extend is dealt out.
Origin: vendor
Forwarded: no: no upstream interface yet
Last-Update: 2026-01-31
Removal: when upstream offers the hook

"""

LINES = [f"line_{i} = {i}\n" for i in range(60)]
UPSTREAM_FILES: dict[str, bytes] = {
    "sglang/__init__.py": b"",
    "sglang/_version.py": f"__version__ = version = '{RELEASE}'\n".encode(),
    "sglang/srt/one.py": "".join(LINES).encode(),
    "sglang/srt/deep/two.py": b"# caf\xc3\xa9 \xc2\x85 \xe2\x80\xa8\nx = 1\r\ny = 2\r\nlast = 3",
    "sglang/srt/deep/gone.py": b"unused = True\n",
    "sglang/srt/other.py": b"untouched = True\n",
}
PATCHED_FILES: dict[str, bytes | None] = {
    "sglang/srt/one.py": "".join([*LINES[:10], "seam = 1\n", *LINES[10:50], *LINES[53:]]).encode(),
    "sglang/srt/deep/two.py": b"# caf\xc3\xa9 \xc2\x85 \xe2\x80\xa8\nx = 1\r\nseam = 2\r\nlast = 3\n",
    "sglang/srt/deep/gone.py": None,
    "sglang/srt/fresh/new.py": "name = 'größer'\n".encode(),
}


def diff_text(path: str, before: bytes | None, after: bytes | None, context: int = 3) -> bytes:
    """Unified diff of one file in the form that git writes, without its extended header."""
    old, new = (list(io.StringIO((side or b"").decode("latin-1"))) for side in (before, after))
    lines = difflib.unified_diff(
        old,
        new,
        "/dev/null" if before is None else f"a/{path}",
        "/dev/null" if after is None else f"b/{path}",
        n=context,
    )
    out = [line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines]
    return "".join(out).encode("latin-1")


def write_series(directory: Path, patches: Mapping[str, bytes], originals: Mapping[str, bytes] | None = None) -> Series:
    directory.mkdir(parents=True, exist_ok=True)
    for name, diff in patches.items():
        (directory / name).write_bytes(HEADER.encode() + diff)
    (directory / "series").write_text("# the order\n" + "".join(f"{name}\n" for name in patches))
    if originals is not None:
        lines = (f"{hashlib.sha256(data).hexdigest()}  {path}\n" for path, data in originals.items())
        (directory / ORIGINALS).write_text("".join(lines))
    return read_series(directory, RELEASE)


def default_patches() -> dict[str, bytes]:
    """Three patches: the first two touch one file in turn; the third changes, deletes and creates files."""
    one, final = UPSTREAM_FILES["sglang/srt/one.py"], PATCHED_FILES["sglang/srt/one.py"]
    between = "".join([*LINES[:10], "seam = 1\n", *LINES[10:]]).encode()
    rest = [path for path in PATCHED_FILES if path != "sglang/srt/one.py"]
    return {
        "0001-one.patch": diff_text("sglang/srt/one.py", one, between),
        "0002-one-again.patch": diff_text("sglang/srt/one.py", between, final),
        "0003-rest.patch": b"".join(diff_text(path, UPSTREAM_FILES.get(path), PATCHED_FILES[path]) for path in rest),
    }


def upstream_of(*paths: str) -> dict[str, bytes]:
    return {path: UPSTREAM_FILES[path] for path in paths}


@pytest.fixture(autouse=True)
def quick_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests end processes, not the power: what was written is seen without reaching the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def series(tmp_path: Path) -> Series:
    touched = upstream_of("sglang/srt/one.py", "sglang/srt/deep/two.py", "sglang/srt/deep/gone.py")
    return write_series(tmp_path / "patches", default_patches(), touched)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return make_tree(tmp_path / "site packages")


def make_tree(root: Path, release: str = RELEASE) -> Tree:
    """A fake installed wheel; RECORD and all."""
    record = []
    for path, data in UPSTREAM_FILES.items():
        if path == "sglang/_version.py":
            data = data.replace(RELEASE.encode(), release.encode())
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record.append(f"{path},sha256={digest},{len(data)}\n")
    dist_info = root / f"sglang-{release}.dist-info"
    dist_info.mkdir()
    (dist_info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: sglang\nVersion: {release}\n")
    (dist_info / "RECORD").write_text("".join(record) + f"{dist_info.name}/RECORD,,\n")
    return Tree(root)


def snapshot(tree: Tree) -> dict[str, bytes]:
    """Every file of the tree by relative path."""
    files = (path for path in tree.root.rglob("*") if path.is_file())
    return {str(path.relative_to(tree.root)): path.read_bytes() for path in files}


def assert_patched(tree: Tree) -> None:
    for path, data in PATCHED_FILES.items():
        assert tree.read(path) == data, path
