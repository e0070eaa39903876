"""Errors that end in one clear sentence for the operator, naming the cause and the way out."""

from __future__ import annotations


class SglangCpError(Exception):
    """Base of every error that is reported without a traceback."""

    exit_code = 1


class UsageError(SglangCpError):
    """The input cannot be used: a wrong path, another SGLang release, a malformed patch, a read-only tree."""

    exit_code = 2


class PatchStateError(SglangCpError):
    """The SGLang tree is not in the state that is needed: edited, half patched or not patched."""

    exit_code = 1
