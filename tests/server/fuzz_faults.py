"""How many streams the fuzzer needs to see each planted fault, and what it shrinks them to.

``python -m tests.server.fuzz_faults`` starts one reference and one CP server, plants the faults of planted_faults.py in
turn, and prints a table in Markdown. The tests use :func:`find`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from evals.arms import Arm, tiny_model
from evals.fuzz.arms import DTYPE, MODELS
from evals.fuzz.arms import reference as reference_spec
from evals.fuzz.bench import Verdict, check
from evals.fuzz.generate import generate
from evals.fuzz.reference import Prepared, Reference
from evals.fuzz.run import smallest_failing
from evals.fuzz.streams import Stream
from evals.plugins import with_plugin
from evals.server import Server, end_on_sigterm, running
from tests.server import planted_faults

SEED = 0
MOST_STREAMS = 25


@dataclass(frozen=True)
class Found:
    """Streams played until one failed, the smallest that fails, what is wrong with it, and replays it took."""

    streams: int
    smallest: Stream
    sentences: list[str]
    replays: int


@dataclass(frozen=True)
class Planted:
    """A bench whose server was started by somebody else."""

    server: Server

    def check(self, prepared: Prepared) -> Verdict:
        return check(self.server, prepared)


def find(server: Server, reference: Reference, first: int = 1) -> Found | None:
    """Play streams from ``first`` on until one fails, and make it small; None if none does."""
    bench = Planted(server)
    for index in range(first, first + MOST_STREAMS):
        prepared = reference.prepare(generate(SEED, index))
        if bench.check(prepared).found:
            smallest, sentences, replays = smallest_failing(prepared.stream, bench, reference.prepare)
            return Found(index - first + 1, smallest, sentences, replays)
    return None


def main() -> int:
    end_on_sigterm()
    missed = 0
    with tempfile.TemporaryDirectory(prefix="sglang-cp-fuzz-faults-") as name:
        folder = Path(name)
        fault_file = folder / "planted"
        model = tiny_model(folder, MODELS["glm"])
        spec = Arm("planted-faults", 2, "sharded", shard_source="symmetric-memory").spec(model, DTYPE)
        spec = with_plugin(spec, planted_faults, folder / "site", **{planted_faults.FILE: str(fault_file)})
        with running(reference_spec(model), folder) as plain, running(spec, folder) as server:
            reference = Reference(plain.url)
            print("| planted fault | streams until seen | shrunk to | replays | seconds | what was wrong |")
            print("|---|---:|---|---:|---:|---|")
            for fault in planted_faults.FAULTS:
                fault_file.write_text(fault)
                started = time.monotonic()
                found = find(server, reference)
                took = time.monotonic() - started
                missed += found is None
                if found is None:
                    print(f"| {fault} | not in {MOST_STREAMS} | | | {took:.0f} | |", flush=True)
                    continue
                requests = found.smallest.requests
                small = ", ".join(f"{request.prompt_tokens} + {request.new_tokens} tokens" for request in requests)
                wrong = found.sentences[0]
                print(f"| {fault} | {found.streams} | {small} | {found.replays} | {took:.0f} | {wrong} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
