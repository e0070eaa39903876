"""Bad input, and what is reported; the soak itself runs in tests/server."""

import pytest
import typer
from typer.testing import CliRunner

from evals import soak
from evals.fuzz.said import Compared
from evals.soak_memory import Sample


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--minutes", "0"], "--minutes 0.0 is no time"),
        (["--minutes", "nan"], "--minutes nan is no time"),
        (["--warm-up", "1"], "--warm-up 1.0 is not a share of the time"),
        (["--pool", "0"], "--pool 0 is too small"),
        (["--minutes", "1", "--interval", "7"], "--interval 7.0 cannot be used: give more than 0 and at most 6"),
        (["--arm", "tp3"], "--arm tp3 is not known: use one of tp2-sharded"),
        (["--output", "/nowhere/soak.json"], "/nowhere is not a directory"),
        (["--minutes", "1", "--log-dir", "/proc/soak"], "The folder /proc/soak cannot be written"),
    ],
)
def test_bad_input_is_refused_before_a_server_starts(arguments, sentence):
    app = typer.Typer()
    app.command()(soak.main)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert sentence in " ".join(result.output.split())


def test_the_table_has_a_dozen_rows_and_the_counts():
    samples = [Sample(10.0 * number, 5, 3 << 30, 1 << 30) for number in range(1, 361)]
    counters = {"cp_extends": 7, "cp_rows": 900}
    said = soak.table(soak.Soak(60.0, 9, 30, 2, 59, Compared(100, 90, 2e-6), counters, samples=samples, grown=0.001))
    lines = said.splitlines()
    assert lines[2] == "| 5.0 | 5 | 3,072.0 | 1,024.0 |"
    assert lines[13] == "| 60.0 | 5 | 3,072.0 | 1,024.0 |"
    assert "9 streams, 30 requests (2 called off), 100 tokens and 90 logprobs" in lines[-1]
    assert "59 pauses with nothing held; memory grew by +0.10%" in lines[-1]
