"""What Python 3.10 lacks: SGLang's ROCm images of the pinned release still come with it."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    from enum import StrEnum

    import tomllib
else:
    import enum

    import tomli as tomllib

    class StrEnum(str, enum.Enum):
        """An enumeration of strings that prints as its value."""

        __str__ = str.__str__


__all__ = ["StrEnum", "tomllib"]
