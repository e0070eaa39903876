"""``sglang-cp calibrate`` against servers that answer as SGLang does."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from typer.testing import CliRunner

from sglang_cp.cli import app
from sglang_cp.cost.calibration import read_calibration
from sglang_cp.errors import UsageError
from tests.calibration.examples import cp_from_100_tokens, key

EXAMPLE = cp_from_100_tokens(key())


class FakeServer:
    """What it has been asked for, and how it answers."""

    def __init__(self):
        self.state = {"decides": True, "measured": None, "refused": None}
        self.accepts, self.with_package = True, True
        self.asked, self.keys = [], []

    def answer(self, path, body):
        if path == "/server_info":
            return {"internal_states": [{"sglang_cp_calibration": self.state} if self.with_package else {}]}
        self.asked.append((path, body))
        if self.accepts:
            self.state["measured"] = EXAMPLE.model_dump()
        return [self.accepts]


@pytest.fixture
def server():
    fake = FakeServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fake.keys.append(self.headers.get("Authorization"))
            answer = json.dumps(fake.answer(self.path, json.loads(body or "null"))).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_POST = do_GET

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        fake.url = f"http://127.0.0.1:{http.server_port}"
        yield fake
        http.shutdown()
        thread.join()


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
    result = calibrate("--url", server.url, "--output", tmp_path / "none" / "c.json")
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
