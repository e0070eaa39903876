"""An SGLang plugin that starts a server's processes under compute-sanitizer: see :mod:`evals.memcheck`.

The sanitizer does not follow Python's spawned processes by itself, and it says what it found when its program ends of
its own accord. This module stands alone, as a plugin must.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading

VARIABLE = "SGLANG_CP_MEMCHECK"
"""Names the program that is started in Python's place."""
END = signal.SIGUSR1
"""Ends a process as its own end would."""
_PATIENCE_S = 30.0  # communicators may wait for a peer that has gone


def register() -> None:
    """In the leading process: set what is spawned. In the others: end when told to."""
    if VARIABLE not in os.environ:
        return
    if multiprocessing.parent_process() is None:
        multiprocessing.set_executable(os.environ[VARIABLE])
    elif threading.current_thread() is threading.main_thread():
        signal.signal(END, _end)


def _end(*_: object) -> None:
    timer = threading.Timer(_PATIENCE_S, os._exit, (0,))
    timer.daemon = True
    timer.start()
    sys.exit(0)
