"""One calibration for all ranks: each rank a thread, with a scheduler of its own."""

import contextlib
import threading
from types import SimpleNamespace

import pytest

from sglang_cp.calibration import server, timing
from sglang_cp.calibration.cache import cache_path, write_cached
from sglang_cp.cost.shape import ExtendShape
from sglang_cp.cost.terms import Mode
from sglang_cp.ranks import StepFailedError
from tests.calibration.examples import cp_from_100_tokens, key

RANKS = 2


class Ranks:
    """Runs a function on every rank at once; what they exchange goes through a barrier."""

    def __init__(self, monkeypatch):
        self.barrier = threading.Barrier(RANKS, timeout=10)
        self.box = [None] * RANKS
        self.here = threading.local()
        for module in (server, timing):
            monkeypatch.setattr(module, "exchange", self.exchange)
        monkeypatch.setattr("sglang_cp.ranks.exchange", self.exchange)

    def exchange(self, group, mine):
        self.box[self.here.rank] = mine
        self.barrier.wait()
        everyones = list(self.box)
        self.barrier.wait()
        return everyones

    def run(self, call):
        """``call(rank)`` on each; its results, exceptions among them."""
        results = [None] * RANKS

        def rank(number):
            self.here.rank = number
            try:
                results[number] = call(number)
            except Exception as error:
                results[number] = error

        threads = [threading.Thread(target=rank, args=(number,)) for number in range(RANKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


class Modes:
    """A rank whose forwards take longer in one mode, by a clock of its own."""

    def __init__(self, rank):
        self.mode, self.rank, self.now = None, rank, 0.0
        self.pulled, self.ran = 0, []

    @contextlib.contextmanager
    def forced(self, mode):
        self.mode = mode
        yield
        self.mode = None

    def pull_all(self):
        assert self.mode is None
        self.pulled += 1
        self.now += 1e-5


def scheduler(rank, **changes):
    fields = {
        "tp_cpu_group": None,
        "tp_group": SimpleNamespace(rank_in_group=rank, world_size=RANKS),
        "max_total_num_tokens": 4096,
        "page_size": 64,
        "chunked_prefill_size": 512,
        "max_running_requests": 4,
        "model_config": SimpleNamespace(context_len=1024),
        "device_module": SimpleNamespace(synchronize=lambda: None),
        "forward_stream_ctx": contextlib.nullcontext(),
    }
    return SimpleNamespace(**{**fields, **changes})


@pytest.fixture
def ranks(monkeypatch, tmp_path):
    monkeypatch.setenv("SGLANG_CP_CACHE_DIR", str(tmp_path))
    made = Ranks(monkeypatch)
    made.modes = [Modes(rank) for rank in range(RANKS)]
    made.shapes, made.monkeypatch = [], monkeypatch

    @contextlib.contextmanager
    def batch(scheduler, shape):
        made.shapes.append(shape)
        yield shape

    def forward(scheduler, shape):
        rank = made.modes[scheduler.tp_group.rank_in_group]
        rank.ran.append((shape, rank.mode))
        rows = -(-shape.rows // RANKS) if rank.mode is Mode.CP else shape.rows
        # Rank 1's clock is ten times as slow: times of its own would give another model.
        rank.now += (2e-4 + 1e-4 * rows) * (1 + 9 * rank.rank)

    monkeypatch.setattr(server, "extend_batch", batch)
    monkeypatch.setattr(server, "forward", forward)
    monkeypatch.setattr(server, "current_platform", SimpleNamespace(empty_cache=lambda: None))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: made.modes[made.here.rank].now)
    return made


def test_all_ranks_measure_the_same_and_have_the_first_ones_model(ranks):
    first, second = ranks.run(lambda rank: server.measured(scheduler(rank), ranks.modes[rank], key()))
    assert first == second
    assert ranks.modes[0].ran == ranks.modes[1].ran
    assert {mode for _, mode in ranks.modes[0].ran} == set(Mode)
    assert ranks.modes[0].pulled == ranks.modes[1].pulled > 0
    times = {(*m.extend_lens, *m.prefix_lens, m.mode): m.seconds for m in first.measurements}
    assert times[128, 0, "tp"] == pytest.approx(2e-4 + 128e-4)
    assert times[128, 0, "cp"] == pytest.approx(2e-4 + 64e-4)
    assert first.pull_seconds == pytest.approx(1e-5)
    assert first.to_fit().worst < 0.05


def test_extends_fit_chunk_context_and_pool(ranks):
    limits = {"chunked_prefill_size": 50, "max_total_num_tokens": 200}
    ranks.run(lambda rank: server.measured(scheduler(rank, **limits), ranks.modes[rank], key()))
    assert max(shape.rows for shape in ranks.shapes) == 50
    assert max(shape.longest for shape in ranks.shapes) == 200 - 64


def test_a_server_without_chunks_measures_up_to_its_context(ranks):
    limits = {"chunked_prefill_size": None}
    ranks.run(lambda rank: server.measured(scheduler(rank, **limits), ranks.modes[rank], key()))
    assert ExtendShape.of([128]) in ranks.shapes


def test_the_first_rank_keeps_what_was_measured_for_the_next_start(ranks):
    measured = ranks.run(lambda rank: server.measured(scheduler(rank), ranks.modes[rank], key()))
    again = ranks.run(lambda rank: server.cached(scheduler(rank), key()))
    assert again == measured
    assert ranks.run(lambda rank: server.cached(scheduler(rank), key(tp=4))) == [None, None]


def test_only_the_first_rank_reads_the_cache(ranks, monkeypatch, tmp_path):
    write_cached(cp_from_100_tokens(key()))
    readers = []
    read = server.read_cached
    monkeypatch.setattr(server, "read_cached", lambda wanted: readers.append(ranks.here.rank) or read(wanted))
    assert ranks.run(lambda rank: server.cached(scheduler(rank), key())) == [cp_from_100_tokens(key())] * RANKS
    assert readers == [0]


def test_extends_that_cannot_be_fitted_fail_on_every_rank_and_write_nothing(ranks):
    limits = {"chunked_prefill_size": 2, "model_config": SimpleNamespace(context_len=2)}
    errors = ranks.run(lambda rank: server.measured(scheduler(rank, **limits), ranks.modes[rank], key()))
    assert [type(error) for error in errors] == [StepFailedError] * RANKS
    assert "too few" in str(errors[1])
    assert not cache_path(key()).exists()


SHORT, LONG, TOO_LONG = ExtendShape.of([10, 6], [0, 300]), ExtendShape.of([512]), ExtendShape.of([513])


def test_given_extends_are_timed_by_turns_and_all_ranks_have_the_first_ones_times(ranks):
    shapes = [SHORT, TOO_LONG, LONG]
    first, second = ranks.run(lambda rank: server.timed(scheduler(rank), ranks.modes[rank], shapes, 3))
    assert first == second
    short, none, long = first
    assert none is None
    assert short.tp == pytest.approx([18e-4] * 3)
    assert short.cp == pytest.approx([10e-4] * 3)
    assert long.cp == pytest.approx([258e-4] * 3)
    assert ranks.modes[0].ran == ranks.modes[1].ran
    tp, cp = Mode.TP, Mode.CP
    assert [mode for shape, mode in ranks.modes[0].ran if shape == SHORT] == [tp, cp, cp, tp, tp, cp, cp, tp]


def test_the_run_that_compiles_kernels_is_in_no_ones_times(ranks):
    cold = set()

    def slow_at_first(scheduler, shape):
        rank = ranks.modes[scheduler.tp_group.rank_in_group]
        rank.now += 1e-3 if (rank.rank, rank.mode) in cold else 7.0
        cold.add((rank.rank, rank.mode))

    ranks.monkeypatch.setattr(server, "forward", slow_at_first)
    (times, _) = ranks.run(lambda rank: server.timed(scheduler(rank), ranks.modes[rank], [LONG], 2))
    assert times[0].tp + times[0].cp == pytest.approx([1e-3] * 4)
