from __future__ import annotations

from pathlib import Path

import pytest

from sglang_cp.errors import UsageError
from sglang_cp.patching.series import Patch, read_series

from .conftest import HEADER, RELEASE, default_patches, diff_text, write_series

DIFF = diff_text("sglang/a.py", b"a\n", b"b\n")


def test_order_comments_and_blank_lines(tmp_path: Path) -> None:
    write_series(tmp_path, {"b.patch": DIFF, "a.patch": DIFF})
    (tmp_path / "series").write_text("# order\n\n  b.patch  # first\na.patch\n")
    assert [patch.name for patch in read_series(tmp_path, RELEASE).patches] == ["b.patch", "a.patch"]


def test_digest_tells_content_order_and_release_apart(tmp_path: Path) -> None:
    write_series(tmp_path, {"a.patch": DIFF, "b.patch": DIFF})
    digests = {read_series(tmp_path, RELEASE).digest, read_series(tmp_path, "9").digest}
    (tmp_path / "series").write_text("b.patch\na.patch\n")
    digests.add(read_series(tmp_path, RELEASE).digest)
    (tmp_path / "b.patch").write_bytes(HEADER.encode() + DIFF + b"\n")
    digests.add(read_series(tmp_path, RELEASE).digest)
    assert len(digests) == 4


def test_header_continuation_unicode_and_repetition() -> None:
    text = "Description: größer\n als zuvor\n\tund mehr\nOrigin: x\nOrigin: y\n\n"
    patch = Patch("a.patch", text.encode() + DIFF)
    assert patch.field("Description") == "größer als zuvor und mehr"
    assert patch.synopsis == "größer"
    assert patch.header["Origin"] == ("x", "y")
    assert patch.field("Removal") == ""
    assert patch.changed_lines == 2


def test_diff_without_git_header_and_with_it() -> None:
    assert Patch("a", b"Description: x\n\n" + DIFF).diffs == Patch("a", DIFF).diffs
    git = b"diff --git a/sglang/a.py b/sglang/a.py\nindex 123..456 100644\n" + DIFF
    assert Patch("a", b"Description: x\n---\n" + git).diffs == Patch("a", DIFF).diffs


def test_touched_files_and_those_upstream_has(tmp_path: Path) -> None:
    series = write_series(tmp_path, default_patches())
    assert series.paths == tuple(sorted({*series.upstream_paths, "sglang/srt/fresh/new.py"}))
    assert len(series.upstream_paths) == 3


def test_a_file_created_and_then_changed_is_not_upstreams(tmp_path: Path) -> None:
    patches = {"a": diff_text("sglang/n.py", None, b"a\n"), "b": diff_text("sglang/n.py", b"a\n", b"b\n")}
    assert write_series(tmp_path, patches).upstream_paths == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no patch series"),
        (b"# nothing\n", "lists no patch"),
        (b"a.patch\na.patch\n", "twice"),
        (b"missing.patch\n", r"cannot be read: .*missing\.patch"),
        (b"../a.patch\n", "not a file beside it"),
        (b"\xff\n", "cannot be read"),
    ],
)
def test_unusable_series(tmp_path: Path, content: bytes | None, message: str) -> None:
    (tmp_path / "a.patch").write_bytes(DIFF)
    if content is not None:
        (tmp_path / "series").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_series(tmp_path, RELEASE)


def test_unreadable_patch_file(tmp_path: Path) -> None:
    (tmp_path / "series").write_text("a.patch\n")
    (tmp_path / "a.patch").mkdir()
    with pytest.raises(UsageError, match=r"cannot be read: .*a\.patch"):
        read_series(tmp_path, RELEASE)


def test_malformed_hashes(tmp_path: Path) -> None:
    write_series(tmp_path, {"a.patch": DIFF})
    (tmp_path / "originals.sha256").write_text("123  sglang/a.py\n")
    with pytest.raises(UsageError, match=r"originals\.sha256 has a malformed line"):
        read_series(tmp_path, RELEASE)


def test_errors_name_the_patch() -> None:
    with pytest.raises(UsageError, match=r"Patch bad\.patch: .*belongs to no hunk"):
        _ = Patch("bad.patch", DIFF + b"+more\n").diffs
    with pytest.raises(UsageError, match=r"Patch empty\.patch: the diff is empty"):
        _ = Patch("empty.patch", HEADER.encode()).diffs
    with pytest.raises(UsageError, match=r"header of odd\.patch is not UTF-8"):
        _ = Patch("odd.patch", b"Description: \xff\n\n" + DIFF).header
