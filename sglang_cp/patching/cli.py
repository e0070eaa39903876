"""``sglang-cp patch``. Exit codes: 0 fine, 1 the tree or the series is not, 2 unusable input."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sglang_cp.patching.series import Series

app = typer.Typer(
    no_args_is_help=True,
    help="Apply the patch series to an installed SGLang, or take it back. "
    "Exit codes: 0 fine, 1 the tree or the series is not, 2 unusable input.",
)

Root = Annotated[
    Path | None,
    typer.Option("--root", help="Directory that contains sglang/; by default the installed SGLang."),
]


def _series() -> Series:
    from sglang_cp.patching.series import read_series
    from sglang_cp.pin import read_pin, series_dir

    release = read_pin().release
    return read_series(series_dir(release), release)


@app.command()
def apply(root: Root = None) -> None:
    """Patch SGLang: all patches or none. Does nothing if they are applied."""
    from sglang_cp.patching import tool
    from sglang_cp.patching.tree import open_tree

    tree, series = open_tree(root), _series()
    done = tool.apply(tree, series)
    typer.echo(f"{len(series.patches)} patches {'applied' if done else 'were already applied'} to {tree.package}.")


@app.command()
def revert(
    root: Root = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also revert files that were changed since; these are set aside.")
    ] = False,
) -> None:
    """Give SGLang its own files back, byte for byte."""
    from sglang_cp.errors import PatchStateError
    from sglang_cp.patching import tool
    from sglang_cp.patching.state import State
    from sglang_cp.patching.tree import open_tree

    tree = open_tree(root)
    aside = tool.revert(tree, force)
    if aside is not None:
        typer.echo(f"The changed files were set aside in {aside}; delete it when you need them no longer.")
    series = _series()
    if tree.release.partition("+")[0] == series.release:
        # Without a journal nothing was reverted: are the files upstream's?
        found = tool.status(tree, series)
        if found.state is State.EDITED:
            raise PatchStateError(found.sentence())
    typer.echo(f"{tree.package} is free of patches.")


@app.command()
def status(root: Root = None) -> None:
    """Say whether SGLang is patched; exit code 0 only if it is, with exactly this series."""
    from sglang_cp.patching import tool
    from sglang_cp.patching.state import State
    from sglang_cp.patching.tree import open_tree

    found = tool.status(open_tree(root), _series())
    typer.echo(found.sentence())
    raise typer.Exit(0 if found.state is State.APPLIED else 1)


@app.command()
def check(root: Root = None) -> None:
    """Check the series: headers, files, sizes; that each patch applies and reverses on upstream's files."""
    from sglang_cp.patching.check import check as find_problems
    from sglang_cp.patching.tree import open_tree
    from sglang_cp.pin import read_pin, series_dir

    release = read_pin().release
    problems = find_problems(open_tree(root), series_dir(release), release)
    for problem in problems:
        typer.echo(problem)
    if problems:
        raise typer.Exit(1)
    patches = _series().patches
    lines = sum(patch.changed_lines for patch in patches)
    typer.echo(f"{len(patches)} patches on SGLang {release} with {lines} changed lines: all checks passed.")


@app.command("list")
def list_(markdown: Annotated[bool, typer.Option("--markdown", help="As a Markdown table.")] = False) -> None:
    """Show the register of patches, made from their headers."""
    from rich.console import Console

    from sglang_cp.patching import register

    if markdown:
        typer.echo(register.as_markdown(_series()))
    else:
        Console().print(register.as_list(_series()))


@app.command()
def pin(root: Root = None) -> None:
    """For maintainers: write originals.sha256, upstream's hashes of the files that the series touches."""
    from sglang_cp.patching.check import pin_originals
    from sglang_cp.patching.tree import open_tree

    series = _series()
    typer.echo(f"{pin_originals(open_tree(root), series)} hashes written to {series.directory}.")
