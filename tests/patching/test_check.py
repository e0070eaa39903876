from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from sglang_cp.errors import UsageError
from sglang_cp.patching import tool
from sglang_cp.patching.check import check, pin_originals
from sglang_cp.patching.register import as_list, as_markdown
from sglang_cp.patching.series import ORIGINALS, Series, read_series
from sglang_cp.patching.tree import Tree

from .conftest import HEADER, RELEASE, UPSTREAM_FILES, diff_text, make_tree, snapshot, upstream_of, write_series

ONE = "sglang/srt/one.py"


def problems(tree: Tree, series: Series) -> str:
    return "\n".join(check(Tree(tree.root), series.directory, RELEASE))


def edit(series: Series, name: str, old: str, new: str) -> None:
    path = series.directory / name
    text = path.read_bytes()
    assert old.encode() in text
    path.write_bytes(text.replace(old.encode(), new.encode(), 1))


def test_a_good_series_has_no_problem_on_a_pristine_and_on_a_patched_tree(tree: Tree, series: Series) -> None:
    before = snapshot(tree)
    assert problems(tree, series) == ""
    assert snapshot(tree) == before
    tool.apply(tree, series)
    assert problems(tree, series) == ""


@pytest.mark.parametrize("field", ["Description", "Origin", "Forwarded", "Last-Update", "Removal"])
def test_every_field_is_required(tree: Tree, series: Series, field: str) -> None:
    edit(series, "0002-one-again.patch", f"{field}:", f"X-{field}:")
    assert problems(tree, series) == f"0002-one-again.patch: the header lacks {field}."
    edit(series, "0002-one-again.patch", f"X-{field}: ", f"{field}: \nX: ")
    assert f"the header lacks {field}." in problems(tree, series)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("2026-01-31", "2026-02-30", "Last-Update must be a date"),
        ("2026-01-31", "20260131", "Last-Update must be a date"),
        ("2026-01-31", "31 Jan 2026", "Last-Update must be a date"),
        ("no: no upstream interface yet", "no", "Forwarded must be a URL or `no: why`"),
        ("no: no upstream interface yet", "no: ", "Forwarded must be a URL or `no: why`"),
        ("Origin: vendor", "Origin: vendor\nOrigin: other", "has Origin 2 times"),
    ],
)
def test_malformed_fields(tree: Tree, series: Series, old: str, new: str, message: str) -> None:
    edit(series, "0001-one.patch", old, new)
    assert message in problems(tree, series)


def test_a_pull_request_is_a_good_forwarded(tree: Tree, series: Series) -> None:
    edit(series, "0001-one.patch", "no: no upstream interface yet", "https://example.org/pull/1 (open)")
    assert problems(tree, series) == ""


def test_missing_doubled_and_orphaned_files_are_all_named(tree: Tree, series: Series) -> None:
    (series.directory / "series").write_text("0001-one.patch\n0001-one.patch\ngone.patch\n0003-rest.patch\n")
    assert check(tree, series.directory, RELEASE) == [
        "0001-one.patch: listed more than once in the series.",
        "gone.patch: listed in the series, but there is no such file.",
        "0002-one-again.patch: not listed in the series.",
    ]


def test_no_series(tree: Tree, tmp_path: Path) -> None:
    assert "no patch series" in "\n".join(check(tree, tmp_path / "none", RELEASE))


@pytest.mark.parametrize(("added", "fine"), [(149, True), (150, False)])
def test_under_150_changed_lines(tree: Tree, tmp_path: Path, added: int, fine: bool) -> None:
    text = UPSTREAM_FILES[ONE]
    diff = diff_text(ONE, text, text + b"x = 1\n" * added)
    series = write_series(tmp_path / "long", {"a.patch": diff}, upstream_of(ONE))
    assert problems(tree, series) == ("" if fine else "a.patch: changes 150 lines, more than 149.")


def test_a_patch_that_does_not_apply_in_order(tree: Tree, series: Series) -> None:
    (series.directory / "series").write_text("0002-one-again.patch\n0001-one.patch\n0003-rest.patch\n")
    assert problems(tree, series).startswith(f"0002-one-again.patch: does not apply: {ONE} does not match")


def test_python_that_does_not_compile(tree: Tree, tmp_path: Path) -> None:
    diff = diff_text(ONE, UPSTREAM_FILES[ONE], UPSTREAM_FILES[ONE] + b"def broken(:\n")
    series = write_series(tmp_path / "broken", {"a.patch": diff}, upstream_of(ONE))
    assert f"a.patch: leaves {ONE} as Python that does not compile" in problems(tree, series)


def test_an_edited_tree_and_another_release_are_named(tree: Tree, series: Series, tmp_path: Path) -> None:
    tree.file(ONE).write_bytes(UPSTREAM_FILES[ONE] + b"# edited\n")
    assert f"are not those of SGLang {RELEASE}: {ONE}" in problems(tree, series)
    assert "is SGLang 2.0" in problems(make_tree(tmp_path / "two", "2.0"), series)


def test_hashes_must_be_those_of_the_wheel_and_of_the_touched_files(tree: Tree, series: Series) -> None:
    good = (series.directory / ORIGINALS).read_text()
    (series.directory / ORIGINALS).write_text("".join(good.splitlines(keepends=True)[1:]))
    assert "does not list exactly the files that the series touches (sglang/srt/one.py)" in problems(tree, series)
    (series.directory / ORIGINALS).write_text("0" * 64 + good[64:])
    assert "is not the one in the RECORD" in problems(tree, series)
    assert pin_originals(tree, read_series(series.directory, RELEASE)) == 3
    assert problems(tree, series) == ""
    assert sorted((series.directory / ORIGINALS).read_text().splitlines()) == sorted(good.splitlines())


def test_hashes_are_never_pinned_from_an_edited_file(tree: Tree, series: Series) -> None:
    good = (series.directory / ORIGINALS).read_text()
    tree.file(ONE).write_bytes(b"edited\n")
    with pytest.raises(UsageError, match=r"one\.py is not upstream's"):
        pin_originals(tree, series)
    assert (series.directory / ORIGINALS).read_text() == good


def test_register_shows_every_field_unchanged(tmp_path: Path) -> None:
    diff = diff_text("sglang/a.py", b"a\n", b"b\n")
    write_series(tmp_path, {"0001-a.patch": diff})
    header = HEADER.replace("Let the seam", "[bold]größer[/bold] a | b")
    (tmp_path / "0001-a.patch").write_bytes(header.encode() + diff)
    series = read_series(tmp_path, RELEASE)
    assert as_markdown(series).splitlines() == [
        "| Patch | What and why | Forwarded | Goes when | Lines |",
        "| --- | --- | --- | --- | --- |",
        "| 0001-a.patch | [bold]größer[/bold] a \\| b call us so that the extend is dealt out. "
        "| no: no upstream interface yet | when upstream offers the hook | 2 |",
    ]
    shown = io.StringIO()
    Console(file=shown, width=300).print(as_list(series))
    assert "  [bold]größer[/bold] a | b call us\n  Forwarded: no: no upstream interface yet" in shown.getvalue()
