"""What the plugin puts around SGLang's scheduler."""

from types import SimpleNamespace

import pytest

from sglang_cp import plugin
from sglang_cp.calibration import serving
from sglang_cp.calibration.requests import Times
from sglang_cp.counters import Counters, Decisions
from sglang_cp.decision import Decision


class Strategy:
    cp_size, calibration, placement, rows, auto = 4, None, None, None, True

    def __init__(self):
        self.latest = None

    def choose_rows(self):
        pass

    def take_latest(self):
        latest, self.latest = self.latest, None
        return latest


@pytest.fixture
def strategy(monkeypatch):
    made = Strategy()
    monkeypatch.setattr(plugin, "_per_batch_strategy", lambda: made)
    monkeypatch.setattr(plugin, "DECISIONS", Decisions())
    return made


def test_each_batch_keeps_its_own_mode_when_its_log_line_comes_after_the_next_batch(strategy):
    first, decode, second = (SimpleNamespace(prefill_stats=SimpleNamespace(cp_mode=None)) for _ in range(3))
    strategy.latest = Decision(True, "threshold reached", "32 >= 8"), 32
    plugin._note_mode(None, None, first)
    plugin._note_mode(None, None, decode)
    strategy.latest = Decision(False, "under the threshold", "7 < 8"), 7
    plugin._note_mode(None, None, second)
    modes = [batch.prefill_stats.cp_mode for batch in (first, decode, second)]
    assert modes == ["cp: 4 x 8 rows (32 >= 8)", None, "tp (7 < 8)"]
    assert plugin.DECISIONS.as_dict() == {
        "cp": {"threshold reached": {"extends": 1, "rows": 32}},
        "tp": {"under the threshold": {"extends": 1, "rows": 7}},
    }


def test_a_server_with_cp_off_notes_nothing(monkeypatch):
    monkeypatch.setattr(plugin, "_per_batch_strategy", lambda: None)
    batch = SimpleNamespace(prefill_stats=SimpleNamespace(cp_mode=None))
    plugin._note_mode(None, None, batch)
    assert batch.prefill_stats.cp_mode is None


class Recorder:
    def __init__(self, *made_for):
        self.made_for, self.told = made_for, []

    def extend_issued(self, *extend):
        self.told.append(extend)

    def publish(self):
        self.told.append("published")


@pytest.mark.parametrize(("overlap", "stream"), [(True, "forward stream"), (False, None)])
def test_the_recorder_learns_of_extends_on_their_stream_and_publishes_after_every_batch(strategy, overlap, stream):
    scheduler = SimpleNamespace(forward_stream="forward stream", enable_overlap=overlap)
    recorder = Recorder()
    setattr(scheduler, plugin._RECORDER, recorder)
    decision = Decision(False, "under the threshold", "7 < 8")
    strategy.latest = decision, 7
    for _ in ("extend", "decode"):
        plugin._note_mode(None, scheduler, SimpleNamespace(prefill_stats=None))
    assert recorder.told == [(decision, 7, stream), "published", "published"]


@pytest.mark.parametrize(("enabled", "placement"), [(True, "loaded"), (True, None), (False, "loaded")])
def test_extends_are_recorded_with_metrics_enabled_and_cp_possible(strategy, monkeypatch, enabled, placement):
    monkeypatch.setattr(serving, "before_serving", lambda *_: None)
    monkeypatch.setattr("sglang_cp.metrics.recorder.make_recorder", Recorder)
    strategy.placement = placement
    scheduler = SimpleNamespace(metrics_reporter=SimpleNamespace(current_scheduler_metrics_enabled=enabled))
    plugin._before_serving(scheduler)
    recorder = getattr(scheduler, plugin._RECORDER, None)
    assert (recorder is not None) == bool(enabled and placement)
    assert recorder is None or recorder.made_for == (scheduler, strategy)


RUNNING = Decision(True, "threshold reached", "32 >= 8"), 32
SHARDS = "the shards of attention layer 1 (process group)"


@pytest.mark.parametrize(
    ("latest", "issued", "awaited", "told"),
    [
        (RUNNING, None, None, ["CP: this batch runs as cp: 4 x 8 rows"]),
        (
            (Decision(True, "threshold reached", "32 >= 8"), 32),
            None,
            SHARDS,
            [f"rows (32 >= 8); this rank waits for {SHARDS}"],
        ),
        (None, "tp (7 < 8)", None, ["CP: this batch runs as tp (7 < 8)."]),
        (None, None, None, []),
    ],
)
def test_the_watchdog_says_what_cp_has_to_do_with_a_batch_that_does_not_end(strategy, latest, issued, awaited, told):
    strategy.latest, strategy.placement = latest, SimpleNamespace(awaited=awaited)
    scheduler = SimpleNamespace(cur_batch=SimpleNamespace(prefill_stats=SimpleNamespace(cp_mode=issued)))
    watchdog = SimpleNamespace(dump_info=lambda: "SGLang's")
    plugin._watch(watchdog, scheduler, watchdog_timeout=300)
    first, *ours = watchdog.dump_info().splitlines()
    assert first == "SGLang's"
    assert [text in line for text, line in zip(told, ours, strict=True)] == [True] * len(told)


@pytest.mark.parametrize("placement", [None, SimpleNamespace(awaited=None)])
def test_between_batches_and_without_cp_the_watchdog_says_what_sglang_does(strategy, placement):
    strategy.placement = placement
    watchdog = SimpleNamespace(dump_info=lambda: "")
    plugin._watch(watchdog, SimpleNamespace(cur_batch=None))
    assert watchdog.dump_info() == ""


def set_state(server_args, scheduler=None):
    """The answer of Scheduler.set_internal_state, and what SGLang's own got to see."""
    seen = []
    scheduler = scheduler or SimpleNamespace()
    request = SimpleNamespace(server_args=server_args)
    answer = plugin._set_state(lambda _, passed: seen.append(passed.server_args) or "SGLang's", scheduler, request)
    return answer, seen


def test_other_server_arguments_are_passed_on(strategy):
    assert set_state({"pp_max_micro_batch_size": 8}) == ("SGLang's", [{"pp_max_micro_batch_size": 8}])


def test_the_key_measures_anew_and_never_becomes_a_server_argument(strategy, monkeypatch):
    calls = []
    monkeypatch.setattr(serving, "measure_again", lambda *arguments: calls.append(arguments))
    scheduler = SimpleNamespace()
    answer, seen = set_state({plugin.CALIBRATE: True}, scheduler)
    assert answer.updated
    assert (calls, seen) == ([(scheduler, strategy)], [])


def test_times_of_given_extends_can_be_read_until_the_next_call(strategy, monkeypatch):
    asked = []
    times = [Times(tp=[0.1], cp=[0.2]), None]
    monkeypatch.setattr(serving, "time_extends", lambda _, __, what: asked.append(what) or times)
    monkeypatch.setattr(serving, "measure_again", lambda *_: None)
    monkeypatch.setattr(plugin, "weight_bytes", lambda model: 1)
    scheduler = SimpleNamespace(tp_worker=SimpleNamespace(model_runner=SimpleNamespace(model=None)))

    def timed():
        return plugin._add_state(SimpleNamespace(internal_state={}), scheduler).internal_state["sglang_cp_calibration"][
            "timed"
        ]

    answer, seen = set_state({plugin.TIME_EXTENDS: "what is asked"}, scheduler)
    assert (answer.updated, seen, asked) == (True, [], ["what is asked"])
    assert timed() == [{"tp": [0.1], "cp": [0.2]}, None]
    assert set_state({plugin.CALIBRATE: True}, scheduler)[0].updated
    assert timed() is None
    assert not set_state({plugin.CALIBRATE: True, plugin.TIME_EXTENDS: "both"}, scheduler)[0].updated


def test_a_refusal_can_be_read_until_the_next_call_succeeds(strategy, monkeypatch):
    def refuse(*_):
        raise serving.RefusedError("busy")

    monkeypatch.setattr(serving, "measure_again", refuse)
    monkeypatch.setattr(plugin, "weight_bytes", lambda model: 1)
    scheduler = SimpleNamespace(tp_worker=SimpleNamespace(model_runner=SimpleNamespace(model=None)))

    def refused():
        state = plugin._add_state(SimpleNamespace(internal_state={}), scheduler).internal_state
        return state["sglang_cp_calibration"]["refused"]

    assert refused() is None
    assert not set_state({plugin.CALIBRATE: True}, scheduler)[0].updated
    assert refused() == "busy"
    answer, seen = set_state({plugin.CALIBRATE: True, "pp_max_micro_batch_size": 8}, scheduler)
    assert (answer.updated, seen) == (False, [])
    assert "a call of its own" in refused()
    monkeypatch.setattr(plugin, "_per_batch_strategy", lambda: None)
    assert not set_state({plugin.CALIBRATE: True}, scheduler)[0].updated
    assert "--enable-prefill-cp" in refused()
    monkeypatch.setattr(plugin, "_per_batch_strategy", lambda: strategy)
    monkeypatch.setattr(serving, "measure_again", lambda *_: None)
    assert set_state({plugin.CALIBRATE: True}, scheduler)[0].updated
    assert refused() is None


def test_rows_are_chosen_before_extends_are_measured(strategy, monkeypatch):
    steps = []
    strategy.choose_rows = lambda: steps.append("rows")
    monkeypatch.setattr(serving, "before_serving", lambda scheduler, strategy: steps.append("extends"))
    plugin._before_serving(SimpleNamespace(metrics_reporter=SimpleNamespace(current_scheduler_metrics_enabled=False)))
    assert steps == ["rows", "extends"]


def test_static_cp_counts_an_extend_once_though_the_draft_model_splits_it_too(monkeypatch):
    counters = Counters()
    monkeypatch.setattr(plugin, "COUNTERS", counters)
    config = SimpleNamespace(hf_config=SimpleNamespace(index_topk=4))
    server_args = SimpleNamespace(cp_strategy="interleave", get_model_config=lambda: config)
    monkeypatch.setattr("sglang.srt.server_args.get_global_server_args", lambda: server_args)
    monkeypatch.setattr(plugin, "_per_batch_strategy", lambda: None)
    for _ in range(3):
        for _target_then_draft in range(2):
            plugin._count_static_extend(None, 8, 0, 2, [9], [8])
        plugin._note_mode(None, None, None)
    assert (counters.cp_extends, counters.cp_rows) == (3, 24)


@pytest.mark.parametrize(
    ("latest", "batch", "said"),
    [
        (
            (Decision(True, "threshold reached", "32 >= 8"), 32),
            None,
            "failed in a batch that runs as cp: 4 x 8 rows (32",
        ),
        (
            None,
            SimpleNamespace(prefill_stats=SimpleNamespace(cp_mode="tp (7 < 8)")),
            "failed in a batch that runs as tp",
        ),
        (None, SimpleNamespace(prefill_stats=None), "this rank failed. If the error is of a connection, another rank"),
        (None, None, "this rank failed. If the error is of a connection, another rank has ended"),
    ],
    ids=["being issued", "issued", "decode", "idle"],
)
def test_a_rank_that_fails_says_what_it_ran_and_where_to_look(strategy, monkeypatch, caplog, latest, batch, said):
    monkeypatch.setattr(plugin, "_before_serving", lambda scheduler: None)

    def loop(scheduler):
        strategy.latest = latest
        raise RuntimeError("Connection reset by peer")

    with pytest.raises(RuntimeError, match="Connection reset"):
        plugin._serve(loop, SimpleNamespace(cur_batch=batch))
    assert said in caplog.text


def test_a_rank_that_fails_with_cp_off_fails_as_sglang_does(monkeypatch, caplog):
    monkeypatch.setattr(plugin, "_per_batch_strategy", lambda: None)

    def loop(scheduler):
        raise RuntimeError("Connection reset by peer")

    with pytest.raises(RuntimeError, match="Connection reset"):
        plugin._serve(loop, SimpleNamespace(cur_batch=None))
    assert caplog.text == ""
