"""An SGLang tree on disk: where it is, its release, what upstream's files hash to. Never imports SGLang."""

from __future__ import annotations

import ast
import base64
import csv
import hashlib
import importlib.metadata
import importlib.util
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sglang_cp.errors import UsageError

PACKAGE = "sglang"


def sha256_hex(content: bytes | None) -> str | None:
    """sha256 of a file's content in hex; None for a file that does not exist."""
    return None if content is None else hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class Tree:
    """The directory ``root`` that contains the package directory ``sglang``: site-packages or a copy."""

    root: Path

    @property
    def package(self) -> Path:
        return self.root / PACKAGE

    def file(self, path: str) -> Path:
        """Absolute place of a file of the tree; refuses symbolic links that would change a file elsewhere."""
        place = self.root / path
        if place.is_symlink() or not place.parent.resolve().is_relative_to(self.package.resolve()):
            raise UsageError(
                f"{place} is a symbolic link or lies behind one, and patching would change a file outside "
                "this tree; re-install SGLang with copied files (uv: --link-mode=copy)."
            )
        return place

    def read(self, path: str) -> bytes | None:
        """Content of a file, None if it does not exist."""
        try:
            return self.file(path).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UsageError(f"{self.root / path} cannot be read: {error.strerror}.") from error

    @cached_property
    def release(self) -> str:
        """Version of the package, from sglang/_version.py or else from the package metadata."""
        version = _assigned_version(self.package / "_version.py")
        if version is None and (dist_info := self._dist_info) is not None:
            version = importlib.metadata.PathDistribution(dist_info).version
        if version is None and installed_root() == self.root:
            version = importlib.metadata.version(PACKAGE)
        if version is None:
            raise UsageError(
                f"The release of {self.package} cannot be told: there is neither sglang/_version.py nor "
                "sglang-*.dist-info beside it; install it, or copy one of the two along."
            )
        return version

    def require_release(self, release: str) -> None:
        """Raise UsageError if the tree is not ``release``; a local suffix (``+rocm``) does not matter."""
        if self.release.partition("+")[0] != release:
            raise UsageError(
                f"{self.package} is SGLang {self.release}, but the patches are made for {release}; "
                f"install it with `pip install sglang=={release}`."
            )

    @cached_property
    def record(self) -> Mapping[str, str]:
        """sha256 (hex) by path from the wheel's RECORD; empty if the tree was not installed from a wheel."""
        if (dist_info := self._dist_info) is None or not (dist_info / "RECORD").is_file():
            return {}
        hashes = {}
        with (dist_info / "RECORD").open(encoding="utf-8", newline="") as file:
            for path, hashed, *_ in csv.reader(file):
                algorithm, _, digest = hashed.partition("=")
                if algorithm == "sha256":
                    hashes[path] = base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4)).hex()
        return hashes

    @property
    def way_back(self) -> str:
        """How to get upstream's files, in words that follow a statement of what is wrong."""
        if self.record:
            return f"re-install it with `pip install --force-reinstall --no-deps {PACKAGE}=={self.release}`"
        return f"restore them (`git checkout` in a git tree) or re-install SGLang {self.release}"

    def command(self, words: str) -> str:
        """A patch command as an operator should type it for this tree."""
        root = "" if installed_root() == self.root else f" --root {shlex.quote(str(self.root))}"
        return f"`sglang-cp patch {words}{root}`"

    @property
    def _dist_info(self) -> Path | None:
        found = sorted(self.root.glob(f"{PACKAGE}-*.dist-info"))
        return found[0] if len(found) == 1 else None


def _assigned_version(path: Path) -> str | None:
    """The string assigned to ``__version__`` in a Python file, read without running it."""
    try:
        module = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = {target.id for target in node.targets if isinstance(target, ast.Name)}
            if "__version__" in names and isinstance(node.value.value, str):
                return node.value.value
    return None


def installed_root() -> Path | None:
    """Directory that contains the installed package (wheel or editable install), None if there is none."""
    try:
        spec = importlib.util.find_spec(PACKAGE)  # a top-level name: found, not executed
    except ValueError:
        return None
    return Path(spec.origin).parent.parent if spec is not None and spec.origin is not None else None


def open_tree(root: Path | None = None) -> Tree:
    """The tree at ``root``, by default the installed SGLang. Raises UsageError if there is no SGLang."""
    if root is None:
        if (root := installed_root()) is None:
            raise UsageError("SGLang is not installed in this Python; install it, or name a tree with --root.")
        return Tree(root)
    if not root.is_dir():
        raise UsageError(f"The root {root} is not a directory; name the one that contains {PACKAGE}/.")
    if not (root / PACKAGE / "__init__.py").is_file():
        better = next(
            (near for near in (root.parent, root / "python") if (near / PACKAGE / "__init__.py").is_file()),
            None,
        )
        hint = f"did you mean {better}?" if better else f"name the directory that contains {PACKAGE}/."
        raise UsageError(f"The root {root} contains no package {PACKAGE}; {hint}")
    return Tree(root.absolute())
