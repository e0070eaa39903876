"""``sglang-cp calibrate`` against servers that answer as SGLang does."""

import re

from typer.testing import CliRunner

from sglang_cp.cli import app
from sglang_cp.cost.calibration import read_calibration
from sglang_cp.errors import UsageError
from tests.calibration.conftest import EXAMPLE


def calibrate(*arguments):
    return CliRunner().invoke(app, ["calibrate", *map(str, arguments)], env={"COLUMNS": "100"})


def test_the_server_measures_and_the_table_is_its_calibration(server, tmp_path):
    result = calibrate("--url", server.url, "--output", tmp_path / "c.json", "--api-key", "secret")
    assert result.exit_code == 0, result.output
    assert server.asked == [("/set_internal_state", {"server_args": {"sglang_cp_calibrate": True}})]
    assert set(server.keys) == {"Bearer secret"}
    assert "+25.0%" in result.output
    assert "from 102 new tokens on" in " ".join(result.output.split())
    assert "fixed threshold" not in result.output
    assert re.search(r"Measuring took \d+\.\d s", result.output)
    assert read_calibration(tmp_path / "c.json") == EXAMPLE


def test_a_server_with_a_fixed_threshold_is_named_so(server):
    server.state["decides"] = False
    assert "keeps its fixed threshold" in calibrate("--url", server.url).output


def test_a_refusal_is_the_servers_own_sentence_and_writes_nothing(server, tmp_path):
    server.accepts, server.state["refused"] = False, "The server is busy."
    result = calibrate("--url", server.url, "--output", tmp_path / "c.json")
    assert (str(result.exception), result.exception.exit_code) == ("The server is busy.", 1)
    assert list(tmp_path.iterdir()) == []


def test_a_server_without_the_package_is_not_asked(server):
    server.with_package = False
    result = calibrate("--url", server.url)
    assert isinstance(result.exception, UsageError)
    assert "runs without this sglang-cp" in str(result.exception)
    assert server.asked == []


def test_no_server_and_no_place_for_the_output_are_one_sentence(server, tmp_path):
    for place in (tmp_path / "none" / "c.json", tmp_path):
        result = calibrate("--url", server.url, "--output", place)
        assert isinstance(result.exception, UsageError)
    assert server.keys == []  # found before anything is asked
    for url in ("http://127.0.0.1:9", "not an address"):
        result = calibrate("--url", url)
        assert isinstance(result.exception, UsageError), url
        assert "--url" in str(result.exception)


def test_a_key_that_no_header_carries_is_refused_before_the_server_is_asked(server):
    result = CliRunner().invoke(app, ["calibrate", "--api-key", "schlüssel"])
    assert isinstance(result.exception, UsageError)
    assert "--api-key" in str(result.exception)
