"""The register of patches, generated from their headers: what, why, forwarded where, when each goes."""

from __future__ import annotations

from rich.text import Text

from sglang_cp.patching.series import Patch, Series

COLUMNS = ("Patch", "What", "Forwarded", "Goes when", "Lines")


def _row(patch: Patch, what: str) -> tuple[str, ...]:
    return (patch.name, what, patch.field("Forwarded"), patch.field("Removal"), str(patch.changed_lines))


def as_list(series: Series) -> Text:
    """The register for a terminal of any width: a paragraph a patch; of the descriptions, the first line."""
    shown = Text(f"Patches on SGLang {series.release}\n", style="bold")
    for patch in series.patches:
        name, what, forwarded, removal, lines = _row(patch, patch.synopsis)
        shown.append(f"\n{name}", style="bold").append(f"  {lines} lines\n", style="dim")
        shown.append(f"  {what}\n  Forwarded: {forwarded}\n  Goes {removal}\n", style="not bold")
    return shown


def as_markdown(series: Series) -> str:
    """The register as a Markdown table; with the whole descriptions, which say why."""
    patches = (_row(patch, patch.field("Description")) for patch in series.patches)
    rows = [(COLUMNS[0], "What and why", *COLUMNS[2:]), ("---",) * len(COLUMNS), *patches]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
