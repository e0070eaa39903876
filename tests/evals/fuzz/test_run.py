"""Which stream goes where, and what happens to one that fails."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.fuzz.arms import FUZZ_ARMS, RETRACTING
from evals.fuzz.generate import crowded, generate
from evals.fuzz.results import Folder, Settings, read_played
from evals.fuzz.run import CONFIRMATIONS, SHRINK_REPLAYS, Fuzzer, schedule
from tests.evals.fuzz.examples import FakeBench, FakeReference

SETTINGS = Settings(seed=0, model="glm", tolerance=1e-5, versions={})


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path, SETTINGS)


def fuzz(folder, bench, streams=6, stop=lambda: False, max_failures=5):
    fuzzer = Fuzzer(0, FakeReference(), folder, lambda arm: bench, lambda *_: None)
    items = schedule(0, streams, 2, FUZZ_ARMS, 1)
    return fuzzer.run(items, stop, max_failures)


@given(st.integers(0, 50), st.integers(1, 60), st.integers(1, 60), st.integers(1, 20), st.integers(1, len(FUZZ_ARMS)))
def test_ranges_share_a_seed_without_overlap(first, one, other, block, arms_per_stream):
    def items(start, streams):
        return [(arm.name, index) for arm, index in schedule(start, streams, block, FUZZ_ARMS, arms_per_stream)]

    parts = items(first, one) + items(first + one, other)
    assert sorted(parts) == sorted(items(first, one + other))
    assert len(set(parts)) == (one + other) * arms_per_stream


def test_without_an_end_all_arms_have_their_turn():
    arms = [arm.name for arm, _ in islice(schedule(0, None, 3, FUZZ_ARMS, 1), 3 * len(FUZZ_ARMS))]
    assert arms == [arm.name for arm in FUZZ_ARMS for _ in range(3)]


def test_every_stream_is_played_once_and_a_second_run_plays_nothing(folder):
    bench = FakeBench(lambda stream: False)
    assert fuzz(folder, bench) == []
    assert bench.plays == [FUZZ_ARMS[index // 2].played(generate(0, index)) for index in range(6)]
    assert [(line.index, line.arm) for line in read_played(folder.path)] == [
        (index, FUZZ_ARMS[index // 2].name) for index in range(6)
    ]
    fuzz(Folder(folder.path, SETTINGS), bench, streams=7)
    assert bench.plays[6:] == [FUZZ_ARMS[3].played(generate(0, 6))]


def test_an_arm_is_asked_its_own_form_of_a_stream(folder):
    bench = FakeBench(lambda stream: False)
    (arm,) = (arm for arm in FUZZ_ARMS if arm.name in RETRACTING)
    fuzzer = Fuzzer(0, FakeReference(), folder, lambda arm: bench, lambda *_: None)
    fuzzer.run(schedule(0, 3, 3, [arm], 1), lambda: False, 1)
    assert bench.plays == [crowded(generate(0, index)) for index in range(3)]


def test_a_failure_is_shrunk_and_kept(folder):
    bench = FakeBench(lambda stream: any(request.prompt_tokens >= 300 for request in stream.requests))
    failures = fuzz(folder, bench, streams=40, max_failures=1)
    (failure,) = failures
    assert [request.prompt_tokens for request in failure.stream.requests] == [300]
    assert failure.found == ("request 0: planted",)
    assert failure.seed == 0
    assert bench.fails(generate(0, failure.index))
    assert read_played(folder.path)[-1].failed
    assert [path.name for path in (folder.path / "failures").iterdir()] == [f"{failure.arm}-{failure.index}.json"]
    assert len(bench.plays) <= failure.index + 1 + CONFIRMATIONS + SHRINK_REPLAYS


def test_a_failure_that_does_not_come_again_is_a_failure_all_the_same(folder):
    seen = []

    def once(stream):
        seen.append(stream)
        return len(seen) == 1

    (failure,) = fuzz(folder, FakeBench(once))
    assert failure.why == "did not fail again in 3 plays"
    assert failure.stream == generate(0, 0)
    assert failure.found == ("request 0: planted",)
    assert [line.failed for line in read_played(folder.path)] == [True] + [False] * 5


def test_it_stops_when_told(folder):
    bench = FakeBench(lambda stream: False)
    fuzz(folder, bench, stop=lambda: len(bench.plays) >= 2)
    assert 2 <= len(bench.plays) <= 3
