"""The register of patches, generated from their headers: what, why, forwarded where, when each goes."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from sglang_cp.patching.series import Patch, Series

COLUMNS = ("Patch", "What", "Forwarded", "Goes when", "Lines")


def _row(patch: Patch, what: str) -> tuple[str, ...]:
    return (patch.name, what, patch.field("Forwarded"), patch.field("Removal"), str(patch.changed_lines))


def as_table(series: Series) -> Table:
    """The register as a table for a terminal; of the descriptions, the first line."""
    table = Table(*COLUMNS, title=f"Patches on SGLang {series.release}", show_lines=True)
    table.columns[0].no_wrap = True
    for patch in series.patches:
        table.add_row(*(Text(cell) for cell in _row(patch, patch.synopsis)))
    return table


def as_markdown(series: Series) -> str:
    """The register as a Markdown table; with the whole descriptions, which say why."""
    patches = (_row(patch, patch.field("Description")) for patch in series.patches)
    rows = [(COLUMNS[0], "What and why", *COLUMNS[2:]), ("---",) * len(COLUMNS), *patches]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
