"""When a server measures, and what it does where it cannot."""

from types import SimpleNamespace

import pytest

from sglang_cp.calibration import serving
from sglang_cp.calibration.requests import Times
from sglang_cp.calibration.serving import RefusedError, before_serving, measure_again, time_extends
from sglang_cp.calibration.synthetic import NoRoomError
from sglang_cp.cost.shape import ExtendShape
from sglang_cp.ranks import StepFailedError
from tests.calibration.examples import cp_from_100_tokens, key

MEASURED = cp_from_100_tokens(key())
CACHED = cp_from_100_tokens(key(device="cached"))
ASKED = {"extends": [{"extend_lens": [8], "prefix_lens": [64]}], "rounds": 3}


class Strategy:
    cp_rank = 0
    placement = SimpleNamespace(source_name="process group")

    def __init__(self, *, auto=True):
        self.auto, self.calibration = auto, None

    def adopt(self, calibration):
        self.calibration = calibration


@pytest.fixture
def calls(monkeypatch, caplog):
    """What is in the cache, and whether it was measured."""
    made = SimpleNamespace(cached=None, measured=0, error=None, others_busy=False)

    def measured(scheduler, modes, key):
        made.measured += 1
        if made.error:
            raise made.error
        return MEASURED

    monkeypatch.setattr(serving, "server_key", lambda scheduler, source: key())
    monkeypatch.setattr(serving, "cached", lambda scheduler, key: made.cached)
    monkeypatch.setattr(serving, "measured", measured)
    monkeypatch.setattr(serving, "exchange", lambda group, mine: [mine, made.others_busy])
    caplog.set_level("INFO", serving.logger.name)
    return made


def scheduler(*, idle=True, paused=False, released=(), **args):
    return SimpleNamespace(
        tp_cpu_group=None,
        is_fully_idle=lambda: idle,
        _engine_paused=paused,
        weight_updater=SimpleNamespace(offload_tags=set(released)),
        server_args=SimpleNamespace(**{"speculative_algorithm": None, "disaggregation_mode": "null", **args}),
    )


def test_auto_measures_before_serving_and_says_from_where_cp_is_chosen(calls, caplog):
    strategy = Strategy()
    before_serving(scheduler(), strategy)
    assert strategy.calibration == MEASURED
    assert "from 102 new tokens on" in caplog.text
    assert "2 extends measured on a test's" in caplog.text


def test_a_cached_calibration_is_not_measured_again(calls, caplog):
    calls.cached = CACHED
    strategy = Strategy()
    before_serving(scheduler(), strategy)
    assert (strategy.calibration, calls.measured) == (CACHED, 0)
    assert "from an earlier start" in caplog.text


def test_only_the_first_rank_logs(calls, caplog):
    strategy = Strategy()
    strategy.cp_rank = 1
    before_serving(scheduler(), strategy)
    calls.error = StepFailedError("no")
    before_serving(scheduler(), strategy)
    calls.cached = CACHED
    before_serving(scheduler(), strategy)
    assert caplog.text == ""


def test_a_fixed_threshold_or_a_server_without_cp_measures_nothing(calls):
    without = Strategy()
    without.placement = None
    for strategy in (Strategy(auto=False), without):
        before_serving(scheduler(), strategy)
        assert strategy.calibration is None
    assert calls.measured == 0


@pytest.mark.parametrize(
    ("args", "named"),
    [({"disaggregation_mode": "decode"}, "on a decode server")],
)
def test_what_cannot_be_measured_keeps_the_default_threshold_with_a_warning(calls, caplog, args, named):
    strategy = Strategy()
    before_serving(scheduler(**args), strategy)
    assert (strategy.calibration, calls.measured) == (None, 0)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert named in record.getMessage()
    with pytest.raises(RefusedError, match=named):
        measure_again(scheduler(**args), strategy)


@pytest.mark.parametrize("args", [{"speculative_algorithm": "EAGLE"}, {"disaggregation_mode": "prefill"}])
def test_servers_with_a_draft_model_or_that_only_prefill_measure(calls, args):
    strategy = Strategy()
    before_serving(scheduler(**args), strategy)
    assert (strategy.calibration, calls.measured) == (MEASURED, 1)


def test_a_failed_measurement_keeps_the_default_threshold_with_a_warning(calls, caplog):
    calls.error = StepFailedError("2 measured points are too few")
    strategy = Strategy()
    before_serving(scheduler(), strategy)
    assert strategy.calibration is None
    assert "too few" in caplog.text


def test_an_idle_server_measures_again_with_a_fixed_threshold_too(calls):
    for strategy in (Strategy(), Strategy(auto=False)):
        calls.cached = CACHED
        measure_again(scheduler(), strategy)
        assert strategy.calibration == MEASURED


@pytest.mark.parametrize("state", [{"idle": False}, {"paused": True}, {"released": ["kv_cache"]}, {"others": True}])
def test_a_server_that_is_not_idle_refuses(calls, state):
    calls.others_busy = state.pop("others", False)
    strategy = Strategy()
    for ask in (measure_again, lambda *server: time_extends(*server, ASKED)):
        with pytest.raises(RefusedError, match="try again"):
            ask(scheduler(**state), strategy)
    assert (strategy.calibration, calls.measured) == (None, 0)


def test_a_server_that_is_plain_tp_refuses(calls):
    strategy = Strategy()
    strategy.placement = None
    for ask in (measure_again, lambda *server: time_extends(*server, ASKED)):
        with pytest.raises(RefusedError, match="plain TP"):
            ask(scheduler(), strategy)


def test_given_extends_are_timed_and_nothing_is_adopted(calls, monkeypatch):
    asked = []
    times = [Times(tp=[1.0], cp=[2.0])]
    monkeypatch.setattr(serving, "timed", lambda scheduler, modes, *what: asked.append(what) or times)
    strategy = Strategy()
    assert time_extends(scheduler(), strategy, ASKED) == times
    assert asked == [([ExtendShape.of([8], [64])], 3)]
    assert (strategy.calibration, calls.measured) == (None, 0)


def test_extends_that_are_none_are_refused_with_a_sentence(calls):
    with pytest.raises(RefusedError, match="cannot be timed"):
        time_extends(scheduler(), Strategy(), {"extends": []})


def test_a_full_pool_is_a_refusal(calls, monkeypatch):
    def full(*_):
        raise NoRoomError("no room")

    monkeypatch.setattr(serving, "timed", full)
    with pytest.raises(RefusedError, match="no room"):
        time_extends(scheduler(), Strategy(), ASKED)
