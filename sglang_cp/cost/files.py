"""Writing a file whole or not at all, and knowing beforehand where that cannot be."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from sglang_cp.errors import UsageError


def write_whole(path: Path, content: bytes) -> None:
    """Write beside ``path`` and rename over it: a reader sees the old file or the new one. Raises OSError."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def check_place(path: Path, option: str = "--output") -> None:
    """Raise UsageError if no file can be written at ``path``, which ``option`` gave; asked before anything is done."""
    if path.is_dir():
        raise UsageError(f"{option} {path} is a directory: name a file.")
    if not path.parent.is_dir():
        raise UsageError(f"{option} {path} cannot be written: {path.parent} is not a directory.")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise UsageError(f"{option} {path} cannot be written ({error.strerror}): name another place.") from error
