from rich.console import Console

from sglang_cp.calibration.report import break_even_text, cp_from_tokens, residuals_text, table
from sglang_cp.cost.model import CostModel
from sglang_cp.cost.terms import Geometry
from tests.calibration.examples import cp_from_100_tokens, key

EXAMPLE = cp_from_100_tokens(key())


def test_the_break_even_is_the_first_length_that_is_dealt_out():
    model = EXAMPLE.to_fit().model
    assert cp_from_tokens(model) == 102  # 101 rows are 51 a rank, a tie that goes to TP
    assert break_even_text(model).endswith("are dealt to 2 ranks from 102 new tokens on")


def test_a_model_without_gain_from_cp_has_no_break_even():
    model = CostModel(Geometry(2, 32), {"launch_cp": 1.0})
    assert cp_from_tokens(model) is None
    assert break_even_text(model) == "no extend without cached prefix up to 131,072 new tokens is dealt out"


def test_residuals_are_of_the_measured_time():
    # CP: 150 us predicted, 120 us measured.
    assert "2 extends measured on a test's, met by the cost model within 17.7%" in residuals_text(EXAMPLE)
    console = Console(width=100)
    with console.capture() as shown:
        console.print(table(EXAMPLE))
    row = next(line for line in shown.get().splitlines() if " cp " in line)
    assert [cell.strip() for cell in row.strip("│").split("│")] == ["200", "0", "cp", "0.12", "0.15", "+25.0%"]
