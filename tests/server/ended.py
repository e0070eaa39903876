"""A server with a fault planted in rank 1, and how it ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from evals.checks import greedy
from evals.plugins import with_plugin
from evals.server import Server, ServerError, ServerSpec, running
from tests.server import ending_faults

WATCHDOG_SECONDS = 6
END_SECONDS = 2 * WATCHDOG_SECONDS + 20
"""SGLang's watchdog looks twice in its time, and gives the parent 5 s to log; the rest is for a busy machine."""
ENV = {
    # SGLang's own diagnostics of a crash, for which it would wait 65 s.
    "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",
    "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
}


@dataclass(frozen=True)
class Faulty:
    """A running server into which a fault can be planted."""

    server: Server
    log: Path
    fault_file: Path

    def end_of(self, fault: str) -> str:
        """Plant ``fault``, let it meet an extend of 100 tokens, and return the whole log.

        Fails unless the client gets an error and every process of the server is gone in time.
        """
        processes = self.processes()
        assert len(processes) >= 4, processes  # the server, its ranks and the detokenizer
        self.fault_file.write_text(fault)
        start = time.monotonic()
        with contextlib.suppress(ServerError):
            answer = self.server.generate(input_ids=list(range(7, 107)), sampling_params=greedy(1))
            raise AssertionError(f"answered in spite of the fault: {answer}")
        _, left = psutil.wait_procs(processes, timeout=max(1.0, END_SECONDS - (time.monotonic() - start)))
        assert left == [], f"still there after {time.monotonic() - start:.0f} s"
        return self.log.read_text(errors="replace")

    def processes(self) -> list[psutil.Process]:
        """The server's, whatever groups and parents they choose: all descend from the one that was started."""
        port = self.server.url.rpartition(":")[2]
        (main,) = [child for child in psutil.Process().children() if port in child.cmdline()]
        return [main, *main.children(recursive=True)]


@contextlib.contextmanager
def faulty(spec: ServerSpec, folder: Path) -> Iterator[Faulty]:
    """Start ``spec`` with the faults of :mod:`ending_faults`; ``folder`` gets its log."""
    fault_file = folder / f"{spec.name}-fault"
    spec = replace(spec, args=(*spec.args, "--watchdog-timeout", str(WATCHDOG_SECONDS)))
    env = {**ENV, ending_faults.FILE: str(fault_file)}
    with running(with_plugin(spec, ending_faults, folder / f"{spec.name}-site", **env), folder) as server:
        (log,) = folder.glob(f"{spec.name}-*.log")
        yield Faulty(server, log, fault_file)
