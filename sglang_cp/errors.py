"""Errors that end in one clear sentence for the operator, naming the cause and the way out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class SglangCpError(Exception):
    """Base of every error that is reported without a traceback."""

    exit_code = 1


class UsageError(SglangCpError):
    """The input cannot be used: a wrong path, another SGLang release, a malformed patch, a read-only tree."""

    exit_code = 2


class PatchStateError(SglangCpError):
    """The SGLang tree is not in the state that is needed: edited, half patched or not patched."""

    exit_code = 1


def first_problem(error: ValidationError, whole: str = "") -> str:
    """Where and what, such as ``key.tp: Input should be ...``. ``whole``: the place of what is wrong as a whole."""
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"])) or whole
    return f"{place}: {first['msg']}" if place else str(first["msg"])
