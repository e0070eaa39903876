"""The same request put to plain SGLang (tp 1, CP off) and to a server with CP, and what is compared of the answers."""

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from evals.checks import MAX_LOGPROB_NATS
from evals.server import Server

CHUNK = 512
"""``--chunked-prefill-size`` of the CP server, in tokens."""
MIN_TOKENS = 200
"""``--cp-min-tokens``: requests shorter than it run as plain TP unless they share a batch."""
POOL_TOKENS = 24 * 64
"""``--max-total-tokens``: 24 pages."""
WAIT_S = 60.0

_ANSWER = (
    *("finish_reason", "prompt_tokens", "completion_tokens", "hidden_states"),
    *("input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs"),
    *("output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs"),
)
"""What of an answer's ``meta_info`` must not depend on parallelism."""


@dataclass(frozen=True)
class Extends:
    """Extends and their rows, by mode."""

    cp: int = 0
    cp_rows: int = 0
    tp: int = 0
    tp_rows: int = 0

    @classmethod
    def of(cls, server: Server) -> "Extends":
        """Since the server's start. A server with static CP tells nothing of its extends of plain TP."""
        state = server.info()["internal_states"][0]
        plain = state["sglang_cp_decisions"]["tp"].values()
        return cls(
            state["sglang_cp"]["cp_extends"],
            state["sglang_cp"]["cp_rows"],
            sum(tally["extends"] for tally in plain),
            sum(tally["rows"] for tally in plain),
        )

    def __sub__(self, other: "Extends") -> "Extends":
        return Extends(*(getattr(self, name) - getattr(other, name) for name in self.__dataclass_fields__))


class Counting:
    """Extends of a server since this was made."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._before = Extends.of(server)

    def __call__(self) -> Extends:
        return Extends.of(self._server) - self._before


class Pair:
    """A reference, whose answers are kept, and a candidate that serves with CP."""

    def __init__(self, reference: Server, candidate: Server, expected: dict[str, Any]) -> None:
        """``expected``: answers of the reference that were asked for before."""
        self.reference = reference
        self.candidate = candidate
        self._expected = expected

    def expected(self, **body: Any) -> Any:
        """The reference's answer to /generate."""
        key = json.dumps(body, sort_keys=True)
        if key not in self._expected:
            self._expected[key] = self.reference.generate(**body)
        return self._expected[key]

    def check(self, **body: Any) -> Extends:
        """Assert that both answer /generate alike, the candidate with nothing cached; returns its extends."""
        self.candidate.flush_cache()
        extends = Counting(self.candidate)
        assert_same(self.candidate.generate(**body), self.expected(**body))
        return extends()

    def call(self, path: str, **body: Any) -> None:
        """POST to the candidate, which must accept it."""
        response = httpx.post(self.candidate.url + path, json=body, timeout=WAIT_S)
        assert response.status_code == httpx.codes.OK, response.text

    @contextlib.contextmanager
    def slowed(self, seconds: float) -> Iterator[None]:
        """Within it the candidate waits before each forward, so that a test can act between two of them."""
        self.call("/slow_down", forward_sleep_time=seconds)
        try:
            yield
        finally:
            self.call("/slow_down", forward_sleep_time=None)

    def assert_nothing_is_held(self) -> None:
        """All requests are gone and, the radix cache emptied, the whole pool is free.

        Request slots: SGLang counts them, and the pool on every rank, whenever it idles, and ends the server if one is
        missing; so the server is asked once more.
        """
        self.candidate.flush_cache()
        load = httpx.get(self.candidate.url + "/v1/loads", timeout=WAIT_S).json()["loads"][0]
        assert load["max_total_num_tokens"] == POOL_TOKENS
        held = {name: load[name] for name in ("num_running_reqs", "num_waiting_reqs", "num_used_tokens")}
        assert not any(held.values()), held
        self.candidate.generate(input_ids=[1, 2, 3], sampling_params={"max_new_tokens": 1})


def assert_same(got: Any, expected: Any) -> None:
    """Two answers of /generate, or lists of them, say the same; floats up to MAX_LOGPROB_NATS."""
    difference = _difference(_answer(got), _answer(expected))
    assert difference is None, difference


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def _answer(response: Any) -> Any:
    if isinstance(response, list):
        return [_answer(each) for each in response]
    meta = {name: response["meta_info"].get(name) for name in _ANSWER}
    return {"text": response["text"], "output_ids": response["output_ids"], **meta}


def _difference(got: Any, expected: Any, where: str = "") -> str | None:
    """Where the two differ first, and how; None if they do not."""
    if isinstance(got, float) and isinstance(expected, float):
        same = math.isclose(got, expected, rel_tol=0, abs_tol=MAX_LOGPROB_NATS)
        return None if same else f"{where}: {got} != {expected}"
    if type(got) is not type(expected):
        return f"{where}: {got!r} != {expected!r}"
    if isinstance(got, dict | list):
        if len(got) != len(expected):
            return f"{where}: {len(got)} != {len(expected)} entries"
        names = list(got) if isinstance(got, dict) else range(len(got))
        found = (_difference(got[name], expected[name], f"{where}/{name}") for name in names)
        return next(filter(None, found), None)
    return None if got == expected else f"{where}: {got!r} != {expected!r}"
