"""The patch tool: a series of small patches on one SGLang release, applied all or nothing, reverted exactly.

Layers, lowest first: ``diff`` (pure), ``series`` (patch files), ``tree`` (an SGLang on disk), ``journal``
(safe replacement of files), ``state`` (what a tree is in), ``tool`` (apply, revert), ``check``, ``register``.
"""

from __future__ import annotations

from pathlib import Path

from sglang_cp.errors import PatchStateError
from sglang_cp.patching.series import read_series
from sglang_cp.patching.state import State, inspect
from sglang_cp.patching.tree import open_tree
from sglang_cp.pin import read_pin, series_dir


def verify_applied(root: Path | None = None) -> str:
    """Check at a server's start that SGLang is patched with exactly this package's series.

    Hashes the touched files only and never imports SGLang. ``root`` contains the package ``sglang``, by
    default the installed one. Returns the series' digest. Raises UsageError (no SGLang, another release) or
    PatchStateError (not, half or otherwise patched), whose text names the cause and the way out.
    """
    release = read_pin().release
    tree = open_tree(root)
    tree.require_release(release)
    digest = read_series(series_dir(release), release).digest
    status = inspect(tree, digest)
    if status.state is not State.APPLIED:
        raise PatchStateError(status.sentence())
    return digest
