"""The choice follows the prediction."""

from hypothesis import given, settings

from sglang_cp.cost.choice import Reason, choose
from sglang_cp.cost.model import CostModel
from sglang_cp.cost.terms import Geometry, Mode
from tests.cost.strategies import SHAPES

# CP starts 1 ms later and saves half of 10 us a row: even at 200 rows.
MODEL = CostModel(Geometry(2, 64), {"launch_cp": 1e-3, "repeated_rows": 1e-5})


@settings(deadline=None)
@given(SHAPES)
def test_the_faster_mode_is_chosen(shape):
    choice = choose(MODEL, shape.extend_lens, shape.prefix_lens)
    assert choice.tp_seconds == MODEL.seconds(shape, Mode.TP)
    assert choice.cp_seconds == MODEL.seconds(shape, Mode.CP)
    assert (choice.mode is Mode.CP) == (shape.rows >= 2 and choice.cp_seconds < choice.tp_seconds)


def test_a_tie_is_plain_tp():
    alike = CostModel(Geometry(2, 64), {"launch_tp": 1e-3, "launch_cp": 1e-3})
    assert choose(alike, [300], [0]).mode is Mode.TP


def test_reasons_and_log_text():
    assert choose(MODEL, [150, 150], [0, 9]).reason is Reason.CP_FASTER
    assert str(choose(MODEL, [300], [0])) == "cp 2.5 ms < tp 3.0 ms"
    assert choose(MODEL, [100], [0]).reason is Reason.TP_NOT_SLOWER
    assert str(choose(MODEL, [100], [0])) == "tp 1.0 ms <= cp 1.5 ms"


def test_fewer_rows_than_ranks_are_never_dealt_out():
    free_cp = CostModel(Geometry(4, 64), {"launch_tp": 1.0})
    assert choose(free_cp, [3], [100]).reason is Reason.FEWER_ROWS_THAN_RANKS
    assert choose(free_cp, [4], [100]).mode is Mode.CP
    assert str(choose(free_cp, [3], [100])) == "fewer rows than ranks"
