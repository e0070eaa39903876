"""An SGLang plugin that starts a server's processes under compute-sanitizer: see :mod:`evals.memcheck`.

The sanitizer does not follow Python's spawned processes by itself, and it says what it found when its program ends of
its own accord. This module stands alone, as a plugin must.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import threading
import time
from pathlib import Path

VARIABLE = "SGLANG_CP_MEMCHECK"
"""Names the program that is started in Python's place."""
END = "end"
"""A file beside that program: once it is there, the processes end."""
_PATIENCE_S = 30.0  # communicators may wait for a peer that has gone


def register() -> None:
    """In the leading process: set what is spawned. In the others: end when told to."""
    program = os.environ.get(VARIABLE)
    if program is None:
        return
    if multiprocessing.parent_process() is None:
        multiprocessing.set_executable(program)
    else:
        threading.Thread(target=_end_when_told, args=(Path(program).with_name(END),), daemon=True).start()


def _end_when_told(told: Path) -> None:
    """No signal: under the sanitizer ranks did not hear one. And C's exit, for the main thread may wait for a peer."""
    while not told.exists():
        time.sleep(0.2)
    timer = threading.Timer(_PATIENCE_S, os._exit, (0,))
    timer.daemon = True
    timer.start()
    ctypes.CDLL(None).exit(0)
