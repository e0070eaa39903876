"""The run: blocks of streams to one arm after the other, each compared with the reference, failures shrunk and kept."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from evals.fuzz.arms import FuzzArm
from evals.fuzz.bench import Bench, Verdict
from evals.fuzz.generate import generate
from evals.fuzz.reference import Prepared, Reference
from evals.fuzz.results import Folder, Played, Replay, versions
from evals.fuzz.shrink import shrink
from evals.fuzz.streams import Stream

CONFIRMATIONS = 3
"""Plays of a failing stream, until it fails again."""
SHRINK_REPLAYS, SHRINK_S = 80, 300.0
_KEPT_STREAMS = 500
"""The reference's answers are forgotten after so many streams."""

Item = tuple[FuzzArm, int]


def schedule(
    first: int, streams: int | None, block: int, arms: Sequence[FuzzArm], arms_per_stream: int
) -> Iterator[Item]:
    """Which stream goes to which arm, in order: blocks of streams, to ``arms_per_stream`` arms each.

    A function of the stream's index alone, so that processes with other ranges play nothing twice.
    """
    last = None if streams is None else first + streams
    for number in itertools.count(first // block):
        indices = [index for index in range(number * block, (number + 1) * block) if first <= index]
        indices = [index for index in indices if last is None or index < last]
        if not indices:
            return
        for turn in range(arms_per_stream):
            arm = arms[(number * arms_per_stream + turn) % len(arms)]
            yield from ((arm, index) for index in indices)


class Checks(Protocol):
    """What plays a stream and says what is wrong: a bench."""

    def check(self, prepared: Prepared) -> Verdict: ...


@dataclass
class Fuzzer:
    """Plays items until it is told to stop.

    Attributes:
        bench: makes a bench for an arm.
        on: called before and after each play with the arm's name, the stream's index and what was wrong; None before.
    """

    seed: int
    reference: Reference
    folder: Folder
    bench: Callable[[FuzzArm], Bench]
    on: Callable[[str, int, Verdict | None], None]

    def run(self, items: Iterable[Item], stop: Callable[[], bool], max_failures: int) -> list[Replay]:
        """Play what is not in the folder yet: the failures."""
        failures: list[Replay] = []
        missing = (item for item in items if (item[1], item[0].name) not in self.folder.done)
        for _, group in itertools.groupby(missing, key=lambda item: item[0].name):
            first = next(group)
            with self.bench(first[0]) as bench:
                for arm, index, prepared in self._ahead(itertools.chain([first], group), stop):
                    self.on(arm.name, index, None)
                    verdict = bench.check(prepared)
                    if verdict.found:
                        failures.append(self._failure(arm, index, bench, prepared, verdict))
                        self.folder.add_failure(failures[-1])
                    self.folder.add(_played(arm, index, prepared.stream, verdict))
                    self.on(arm.name, index, verdict)
                    if len(failures) >= max_failures:
                        return failures
            if stop():
                break
        return failures

    def _ahead(self, items: Iterator[Item], stop: Callable[[], bool]) -> Iterator[tuple[FuzzArm, int, Prepared]]:
        """Each item with the reference's answers, asked while the one before is played."""
        with ThreadPoolExecutor(1) as pool:
            waiting: tuple[FuzzArm, int, Future[Prepared]] | None = None
            for arm, index in items:
                ahead = (arm, index, pool.submit(self._prepare, arm.played(generate(self.seed, index))))
                if waiting is not None:
                    yield (*waiting[:2], waiting[2].result())
                waiting = ahead
                if stop():
                    return
            if waiting is not None:
                yield (*waiting[:2], waiting[2].result())

    def _prepare(self, stream: Stream) -> Prepared:
        if self.reference.streams >= _KEPT_STREAMS:
            self.reference.forget()
        return self.reference.prepare(stream)

    def _failure(self, arm: FuzzArm, index: int, bench: Bench, prepared: Prepared, verdict: Verdict) -> Replay:
        """Ask the reference again, play again, shrink."""
        found = list(verdict.found)
        self.reference.forget()
        if self.reference.prepare(prepared.stream, together=False) != prepared:
            found.append("the reference itself answers otherwise when it is asked one request at a time")
        smallest, again, replays = smallest_failing(prepared.stream, bench, self._prepare)
        why = f"made small in {replays} replays" if again else f"did not fail again in {CONFIRMATIONS} plays"
        return Replay(
            why=why,
            arm=arm.name,
            stream=smallest,
            seed=self.seed,
            index=index,
            found=tuple(again or found),
            versions=versions(),
        )


def smallest_failing(
    stream: Stream, bench: Checks, prepare: Callable[[Stream], Prepared]
) -> tuple[Stream, list[str], int]:
    """The smallest stream that fails, what is wrong with it, and how many replays it took; nothing if none fails."""
    deadline = time.monotonic() + SHRINK_S
    replays = 0
    found: list[str] = []

    def fails(smaller: Stream) -> bool:
        nonlocal replays, found
        if replays >= SHRINK_REPLAYS or time.monotonic() > deadline:
            return False
        replays += 1
        verdict = bench.check(prepare(smaller))
        found = verdict.found or found
        return bool(verdict.found)

    if not any(fails(stream) for _ in range(CONFIRMATIONS)):
        return stream, [], replays
    return shrink(stream, fails), found, replays


def _played(arm: FuzzArm, index: int, stream: Stream, verdict: Verdict) -> Played:
    return Played(
        index=index,
        arm=arm.name,
        requests=len(stream.requests),
        aborted=sum(request.abort is not None for request in stream.requests),
        tokens=verdict.compared.tokens,
        logprobs=verdict.compared.logprobs,
        max_gap=verdict.compared.max_gap,
        retractions=verdict.compared.retractions,
        cp_extends=verdict.counters.get("cp_extends", 0),
        cp_rows=verdict.counters.get("cp_rows", 0),
        cp_rows_over_topk=verdict.counters.get("cp_rows_over_topk", 0),
        seconds=round(verdict.seconds, 2),
        failed=bool(verdict.found),
    )
