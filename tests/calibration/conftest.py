"""A server that answers as SGLang does, as far as measuring goes."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from sglang_cp.calibration import CALIBRATE
from tests.calibration.examples import cp_from_100_tokens, key

EXAMPLE = cp_from_100_tokens(key())


class FakeServer:
    """What it has been asked for, and how it answers."""

    def __init__(self):
        self.state = {"decides": True, "measured": None, "refused": None, "timed": None}
        self.accepts, self.with_package, self.status = True, True, 200
        self.asked, self.keys = [], []

    def answer(self, path, body):
        if path == "/server_info":
            return {
                "device": "cpu",
                "internal_states": [{"sglang_cp_calibration": self.state} if self.with_package else {}],
            }
        self.asked.append((path, body))
        if self.accepts and CALIBRATE in body["server_args"]:
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
            self.send_response(fake.status)
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
