"""The register of patches, generated from their headers: what, why, forwarded where, when each goes."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from sglang_cp.patching.series import Patch, Series

COLUMNS = ("Patch", "What and why", "Forwarded", "Goes when", "Updated", "Lines")


def _row(patch: Patch) -> tuple[str, ...]:
    fields = (patch.field(name) for name in ("Description", "Forwarded", "Removal", "Last-Update"))
    return (patch.name, *fields, str(patch.changed_lines))


def as_table(series: Series) -> Table:
    """The register as a table for a terminal."""
    table = Table(*COLUMNS, title=f"Patches on SGLang {series.release}", show_lines=True)
    for patch in series.patches:
        table.add_row(*(Text(cell) for cell in _row(patch)))
    return table


def as_markdown(series: Series) -> str:
    """The register as a Markdown table."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *(_row(patch) for patch in series.patches)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
