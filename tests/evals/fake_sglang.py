"""A server that answers like SGLang, without a model: what evaluations ask, and what can go wrong with it."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.evals.questions import TEST

COUNTERS = ("cp_extends", "cp_rows", "cp_local_rows", "cp_rows_over_topk")
_ANSWERS = {row["question"]: row["answer"] for row in TEST}


class OutOfMemory(Exception):
    """Raised by an answer, it becomes status 500."""


def solve(prompt: str) -> str:
    """The right answer: of the last question's problem, or of the needle asked for."""
    asked = re.search(r"The secret number of (\w+) is$", prompt)
    if asked:
        return " " + re.search(rf"number of {asked[1]} is (\d+)\.", prompt)[1] + ".\n"
    return " " + _ANSWERS[re.findall(r"Question: (.*)\nAnswer:", prompt)[-1]]


class FakeSGLang:
    """One arm. A token is a byte of UTF-8.

    Args:
        cp: whether it says that CP is on.
        index_topk: a CP extend's rows beyond it are counted.
        counts: whether prompts are dealt out; None leaves sglang-cp out of /server_info.
        answer: from a prompt to the text that continues it.
        context: context length in tokens.
        shift: added to each token id, as another tokenizer would.
    """

    def __init__(
        self,
        *,
        cp: bool,
        index_topk: int = 100,
        counts: bool | None = True,
        answer: Callable[[str], str] = solve,
        context: int = 100_000,
        shift: int = 0,
        model_path: str = "/nowhere",
    ) -> None:
        self.prompts: list[str] = []
        self.cached_from_before = True
        self._cp, self._topk, self._counts, self._answer = cp, index_topk, counts, answer
        self._context, self._shift, self._model_path = context, shift, model_path
        self._counters = dict.fromkeys(COUNTERS, 17)
        self._lock = threading.Lock()

    def __enter__(self) -> FakeSGLang:
        handler = type("Handler", (_Handler,), {"fake": self})
        self._http = _Http(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def get(self, path: str) -> object:
        if path == "/v1/models":
            return {"data": [{"max_model_len": self._context}]}
        state = {} if self._counts is None else {"sglang_cp": self._counters}
        names = {"served_model_name": "fake", "model_path": self._model_path, "enable_prefill_cp": self._cp}
        return {**names, "max_req_input_len": self._context - 6, "internal_states": [state]}

    def post(self, path: str, body: dict) -> object:
        if path == "/flush_cache":
            self.cached_from_before = False
            return {}
        if path == "/tokenize":
            return {"tokens": [[byte + self._shift for byte in text.encode()] for text in body["prompt"]]}
        if path == "/generate":
            return {"text": self._ask(bytes(body["input_ids"]).decode(errors="replace"))}
        assert body["temperature"] == 0
        assert path == "/v1/completions"
        return {"choices": [{"index": 0, "text": self._ask(body["prompt"])}]}

    def _ask(self, prompt: str) -> str:
        with self._lock:
            self.prompts.append(prompt)
            # What an earlier run left in the radix cache is not prefilled.
            if self._cp and self._counts and not self.cached_from_before:
                rows = len(prompt.encode())
                changes = (1, rows, rows // 2, max(0, rows - self._topk))
                for name, change in zip(COUNTERS, changes, strict=True):
                    self._counters[name] += change
        return self._answer(prompt)


class _Http(ThreadingHTTPServer):
    request_queue_size = 64


class _Handler(BaseHTTPRequestHandler):
    fake: FakeSGLang
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send(self.fake.get(self.path))

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size) or b"{}")
        try:
            self._send(self.fake.post(self.path.partition("?")[0], body))
        except OutOfMemory:
            self.send_error(500, "out of memory")

    def _send(self, content: object) -> None:
        encoded = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    def log_message(self, *_: object) -> None:
        """Quiet."""
