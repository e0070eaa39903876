from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_cp.errors import UsageError
from sglang_cp.patching.diff import DiffError, apply_diff, parse_diff, reverse_diff

from .conftest import diff_text

PATH = "sglang/srt/file.py"
# Few distinct lines, so that hunks could match at wrong places; every character some line splitter breaks at.
LINE = st.sampled_from(["a\n", "b\n", "\n", "\r\n", "x\r\n", "\x0c\n", "\x85\n", "-- a\n", "++ b\n", "\\ c\n"])
CONTENT = st.one_of(
    st.none(),
    st.tuples(st.lists(LINE, max_size=25), st.sampled_from(["", "end", "\r", "é"])).map(
        lambda parts: ("".join(parts[0]) + parts[1]).encode("latin-1")
    ),
)


@given(before=CONTENT, after=CONTENT, context=st.integers(0, 4))
@settings(max_examples=400, deadline=None)
def test_applies_and_reverses_byte_for_byte(before: bytes | None, after: bytes | None, context: int) -> None:
    if (before or b"") == (after or b""):
        return
    diffs = parse_diff(diff_text(PATH, before, after, context))
    assert apply_diff(diffs, {PATH: before}) == {PATH: after}
    assert apply_diff(reverse_diff(diffs), {PATH: after}) == {PATH: before}


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_a_shift_by_one_line_is_refused(data: st.DataObject) -> None:
    lines = [f"line {number}\n" for number in range(data.draw(st.integers(1, 20)))]
    at = data.draw(st.integers(0, len(lines)))
    before = "".join(lines).encode("latin-1")
    after = "".join([*lines[:at], "new\n", *lines[at:]]).encode("latin-1")
    diffs = parse_diff(diff_text(PATH, before, after))
    shifted = b"pushed down\n" + before
    with pytest.raises(DiffError, match=r"does not match|wrong new position"):
        apply_diff(diffs, {PATH: shifted})


def hunk(*lines: str, header: str = "@@ -1,2 +1,2 @@") -> bytes:
    return "\n".join([f"--- a/{PATH}", f"+++ b/{PATH}", header, *lines, ""]).encode()


def test_one_context_byte_decides() -> None:
    diffs = parse_diff(hunk(" a", "-b", "+c"))
    assert apply_diff(diffs, {PATH: b"a\nb\n"}) == {PATH: b"a\nc\n"}
    for edited in (b"a \nb\n", b"A\nb\n", b"a\nb", b"a\r\nb\n"):
        with pytest.raises(DiffError, match=r"file\.py does not match the hunk at line 1"):
            apply_diff(diffs, {PATH: edited})


def test_new_position_must_agree_with_earlier_hunks() -> None:
    diffs = parse_diff(hunk(" a", "-b", "+c", header="@@ -1,2 +5,2 @@"))
    with pytest.raises(DiffError, match="wrong new position"):
        apply_diff(diffs, {PATH: b"a\nb\n"})


def test_surplus_lines_of_a_hunk_are_not_dropped_silently() -> None:
    with pytest.raises(DiffError, match="belongs to no hunk: '\\+forgotten'"):
        parse_diff(hunk(" a", "-b", "+c", "+forgotten"))


def test_last_hunk_cut_short() -> None:
    with pytest.raises(DiffError, match=r"not a unified diff: .*shorter"):
        parse_diff(hunk(" a", "-b", "+c", header="@@ -1,3 +1,3 @@"))
    with pytest.raises(DiffError, match="cut short"):
        parse_diff(hunk(" a", "-b", "+c").rstrip(b"\n"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a/sglang/../../etc/passwd", "b/sglang/../../etc/passwd"),
        ("a/etc/passwd", "b/etc/passwd"),
        ("/etc/passwd", "/etc/passwd"),
        ("a/sglang/x.py", "b/sglang/y.py"),
        ("a/sglang//x.py", "b/sglang//x.py"),
    ],
)
def test_paths_outside_the_package_are_refused(old: str, new: str) -> None:
    with pytest.raises(DiffError, match="paths must be"):
        parse_diff(f"--- {old}\n+++ {new}\n@@ -1 +1 @@\n-a\n+b\n".encode())


@pytest.mark.parametrize(
    "extra",
    ["old mode 100644\nnew mode 100755\n", "rename from sglang/a.py\n", "Binary files a/x and b/x differ\n"],
)
def test_what_is_not_a_text_change_is_refused(extra: str) -> None:
    git = f"diff --git a/{PATH} b/{PATH}\n{extra}".encode()
    with pytest.raises(DiffError, match="belongs to no hunk"):
        parse_diff(git + hunk(" a", "-b", "+c"))


def test_git_headers_are_understood() -> None:
    data = (
        b"diff --git a/sglang/new.py b/sglang/new.py\nnew file mode 100644\nindex 0000000..1234567\n"
        b"--- /dev/null\n+++ b/sglang/new.py\n@@ -0,0 +1 @@\n+a\n"
        b"diff --git a/sglang/old.py b/sglang/old.py\ndeleted file mode 100644\nindex 1234567..0000000\n"
        b"--- a/sglang/old.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-b\n"
    )
    diffs = parse_diff(data)
    assert [(diff.path, diff.creates, diff.deletes) for diff in diffs] == [
        ("sglang/new.py", True, False),
        ("sglang/old.py", False, True),
    ]
    before = {"sglang/new.py": None, "sglang/old.py": b"b\n"}
    assert apply_diff(diffs, before) == {"sglang/new.py": b"a\n", "sglang/old.py": None}
    with pytest.raises(DiffError, match="already exists"):
        apply_diff(diffs, {**before, "sglang/new.py": b""})
    with pytest.raises(DiffError, match="does not exist"):
        apply_diff(diffs, {**before, "sglang/old.py": None})
    with pytest.raises(DiffError, match="leave lines"):
        apply_diff(diffs, {**before, "sglang/old.py": b"b\nmore\n"})


def test_a_file_named_twice_is_refused() -> None:
    with pytest.raises(DiffError, match="twice"):
        parse_diff(hunk(" a", "-b", "+c") * 2)


def test_without_unidiff_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "unidiff", None)  # as after `pip install --no-deps`
    with pytest.raises(UsageError, match="pip install unidiff"):
        parse_diff(hunk(" a", "-b", "+c"))
