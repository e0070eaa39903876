"""Starting and ending servers, with small programs in SGLang's place."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evals.server import ServerError, ServerSpec, running

HEALTHY = """
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class Program(ServerSpec):
    """A spec whose command is a Python program that gets the port."""

    def command(self, port):
        return [sys.executable, "-c", self.args[0], str(port)]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


def test_the_whole_group_ends_with_the_server(tmp_path):
    with running(Program("healthy", tmp_path, (HEALTHY,)), tmp_path):
        child = int(next(tmp_path.glob("healthy-*.log")).read_text().split()[1])
        assert alive(child)
    deadline = time.monotonic() + 10
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(child)


def test_a_server_that_dies_is_reported_with_the_end_of_its_log(tmp_path):
    spec = Program("dying", tmp_path, ("raise SystemExit('out of luck')",))
    with (
        pytest.raises(ServerError, match=r"dying ended with code 1 while starting.(.|\n)*out of luck"),
        running(spec, tmp_path),
    ):
        pass


def test_sigterm_ends_the_servers_that_were_started(tmp_path):
    """As a CI that runs out of time does."""
    code = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from evals.server import end_on_sigterm, running
from tests.evals.test_server import HEALTHY, Program
end_on_sigterm()
with running(Program("healthy", Path({str(tmp_path)!r}), (HEALTHY,)), Path({str(tmp_path)!r})):
    print("up", flush=True)
    time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "up\n"
    child = int(next(tmp_path.glob("healthy-*.log")).read_text().split()[1])
    process.terminate()
    assert process.wait(30) == 143
    deadline = time.monotonic() + 10
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(child)
