"""How bytes of other ranks are had, and which way a wish and the circumstances give."""

from __future__ import annotations

from sglang_cp.compat import StrEnum
from sglang_cp.errors import UsageError


class SourceKind(StrEnum):
    """Values of ``--cp-shard-source`` and ``--cp-row-collectives``."""

    AUTO = "auto"
    SYMMETRIC_MEMORY = "symmetric-memory"
    PROCESS_GROUP = "process-group"

    @property
    def label(self) -> str:
        """For people: ``symmetric memory``."""
        return self.value.replace("-", " ")


def resolve(wanted: SourceKind, obstacle: str | None, flag: str = "--cp-shard-source") -> SourceKind:
    """The kind to take: ``auto`` is symmetric memory unless something is in the way.

    Args:
        wanted: what was asked for.
        obstacle: what is in the way of symmetric memory; None if nothing is.
        flag: by which it was asked for.

    Raises:
        UsageError: if symmetric memory was asked for by name and cannot be had.
    """
    if wanted is SourceKind.PROCESS_GROUP:
        return wanted
    if obstacle is None:
        return SourceKind.SYMMETRIC_MEMORY
    if wanted is SourceKind.SYMMETRIC_MEMORY:
        raise UsageError(f"{flag} symmetric-memory is impossible here: {obstacle}; use auto.")
    return SourceKind.PROCESS_GROUP
