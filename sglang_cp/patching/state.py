"""In which state an SGLang tree is, told from hashes alone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sglang_cp.patching.journal import Journal, owned, read_journal
from sglang_cp.patching.tree import Tree, sha256_hex


class State(Enum):
    """States of a tree; only APPLIED is fit to serve."""

    NOT_APPLIED = "not applied"
    APPLIED = "applied"
    OUTDATED = "another series applied"
    HALF_APPLIED = "half applied"
    EDITED = "edited"


@dataclass(frozen=True)
class Status:
    """State of a tree, its journal if any, and the files that the state is about (edited, or not patched)."""

    tree: Tree
    state: State
    journal: Journal | None = None
    files: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    """Those of ``files`` that upstream does not have at all: no re-installation removes them."""

    def sentence(self) -> str:
        """The state and the way out, for the operator."""
        names, package, command = ", ".join(self.files), self.tree.package, self.tree.command
        match self.state:
            case State.APPLIED:
                return f"The patches are applied to {package} (SGLang {self.tree.release})."
            case State.NOT_APPLIED:
                return f"The patches are not applied to {package}; run {command('apply')}."
            case State.OUTDATED:
                return (
                    f"Another patch series than that of this sglang-cp is applied to {package}; "
                    f"run {command('apply')} to replace it."
                )
            case State.HALF_APPLIED:
                return (
                    f"The patches are half applied to {package} (without: {names}), as after a killed run or a "
                    f"re-installation; run {command('revert')} to go back, or {command('apply')} to finish."
                )
            case State.EDITED if self.journal is not None:
                return (
                    f"These files of {self.tree.root} were changed after they were patched: {names}; undo "
                    f"the changes, or run {command('revert --force')}, which sets them aside."
                )
            case State.EDITED:
                delete = f", and delete {', '.join(self.foreign)}, which SGLang does not have" if self.foreign else ""
                return (
                    f"These files of {self.tree.root} are not those of SGLang {self.tree.release}: {names}; "
                    f"{self.tree.way_back}{delete}."
                )


def inspect(tree: Tree, series: str | None = None) -> Status:
    """State of ``tree`` as its journal tells it: cheap, for it reads the touched files and parses no diff.

    ``series`` is the digest of the series that is wanted; any other that is applied counts as outdated.
    Without a journal the tree counts as not applied; ``tool.edited`` tells whether its files are upstream's.
    Raises PatchStateError if the journal is damaged.
    """
    journal = read_journal(tree)
    if journal is None:
        return Status(tree, State.NOT_APPLIED)
    hashes = {file.path: sha256_hex(tree.read(file.path)) for file in journal.files}
    original = [file.path for file in journal.files if hashes[file.path] == file.before]
    patched = [file.path for file in journal.files if hashes[file.path] == file.after]
    if journal.release != tree.release:  # SGLang was re-installed over a patched tree
        state = State.HALF_APPLIED if owned(tree, journal) else State.NOT_APPLIED
        return Status(tree, state, journal, tuple(path for path in hashes if path not in patched))
    if changed := [path for path in hashes if path not in original and path not in patched]:
        return Status(tree, State.EDITED, journal, tuple(changed))
    if not patched:
        return Status(tree, State.NOT_APPLIED, journal)
    if original:
        return Status(tree, State.HALF_APPLIED, journal, tuple(original))
    state = State.APPLIED if journal.series == series else State.OUTDATED
    return Status(tree, state, journal)
