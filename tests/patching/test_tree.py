from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_cp.errors import UsageError
from sglang_cp.patching.tree import Tree, installed_root, open_tree

from .conftest import RELEASE, UPSTREAM_FILES, make_tree


def test_record_holds_the_hash_of_every_file(tree: Tree) -> None:
    assert tree.record == {path: hashlib.sha256(data).hexdigest() for path, data in UPSTREAM_FILES.items()}


def test_release_from_version_file_then_from_metadata(tree: Tree) -> None:
    assert tree.release == RELEASE
    metadata = tree.root / f"sglang-{RELEASE}.dist-info"
    tree.file("sglang/_version.py").write_text("__version__ = version = '7.0'\n__version_tuple__ = (7, 0)\n")
    assert Tree(tree.root).release == "7.0"
    for unusable in ("__version__ = make()\n", "def broken(\n"):
        tree.file("sglang/_version.py").write_text(unusable)
        assert Tree(tree.root).release == RELEASE
    tree.file("sglang/_version.py").unlink()
    assert Tree(tree.root).release == RELEASE
    shutil.rmtree(metadata)
    with pytest.raises(UsageError, match="cannot be told"):
        _ = Tree(tree.root).release


@pytest.mark.parametrize(
    ("root", "message"),
    [
        ("nowhere", r"nowhere is not a directory"),
        ("empty dir", r"empty dir contains no package sglang; name the directory"),
        ("site/sglang", r"did you mean .*site\?"),
        ("checkout", r"did you mean .*checkout/python\?"),
        ("site/sglang/__init__.py", "is not a directory"),
    ],
)
def test_unusable_roots(tmp_path: Path, root: str, message: str) -> None:
    (tmp_path / "empty dir").mkdir()
    make_tree(tmp_path / "site")
    make_tree(tmp_path / "checkout/python")
    with pytest.raises(UsageError, match=message):
        open_tree(tmp_path / root)


FIND = """
from sglang_cp.patching.tree import open_tree
tree = open_tree()
print(tree.root, tree.release, "sglang" in sys.modules)
"""


def find(*paths: Path) -> str:
    code = f"import sys; sys.path[:0] = {[str(path) for path in paths]!r}\n{FIND}"
    run = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_the_installed_package_is_found_and_not_imported(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "site")
    tree.file("sglang/__init__.py").write_text("raise RuntimeError('imported')\n")
    assert find(tree.root) == f"{tree.root} {RELEASE} False"


def test_an_editable_install_takes_its_release_from_the_metadata_elsewhere(tmp_path: Path) -> None:
    checkout, site = make_tree(tmp_path / "checkout/python"), make_tree(tmp_path / "site", "4.5.6")
    shutil.rmtree(next(checkout.root.glob("*.dist-info")))
    checkout.file("sglang/_version.py").unlink()
    shutil.rmtree(site.package)
    assert find(checkout.root, site.root) == f"{checkout.root} 4.5.6 False"


def test_a_namespace_left_by_an_uninstalled_package_is_no_sglang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sglang/.sglang_cp").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "sglang", raising=False)
    assert installed_root() is None
    with pytest.raises(UsageError, match="not installed"):
        open_tree()


def test_a_directory_in_place_of_a_file(tree: Tree) -> None:
    tree.file("sglang/srt/one.py").unlink()
    tree.file("sglang/srt/one.py").mkdir()
    with pytest.raises(UsageError, match=r"one\.py cannot be read: Is a directory"):
        tree.read("sglang/srt/one.py")
