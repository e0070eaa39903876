"""A server must give everything back."""

import pytest

from evals.fuzz import bench
from evals.fuzz.bench import check, settle
from evals.fuzz.said import Outcome
from evals.server import ServerError
from tests.evals.fuzz.examples import FakeReference, said, stream
from tests.evals.fuzz.examples import request as example


class Server:
    name, url = "cp", "http://cp"

    def __init__(self):
        self.flushes = 0

    def flush_cache(self):
        self.flushes += 1

    def cp_counters(self):
        return {"cp_extends": self.flushes}


@pytest.fixture
def held(monkeypatch):
    """What the server holds, at each look; the last for ever."""
    looks = []
    monkeypatch.setattr(bench, "_SETTLE_S", 0.1)
    monkeypatch.setattr(bench, "_held", lambda server: looks.pop(0) if len(looks) > 1 else looks[0])
    return looks


def test_a_server_may_take_a_moment(held):
    held += ["num_used_tokens = 64", "num_used_tokens = 64", ""]
    settle(Server())
    assert held == [""]


def test_tokens_that_stay_are_an_error(held):
    held.append("num_used_tokens = 64")
    with pytest.raises(ServerError, match="cp still holds num_used_tokens = 64 with nothing to do"):
        settle(Server())


def test_a_check_looks_before_and_after(held, monkeypatch):
    held.append("")

    async def play(url, prepared):
        return [Outcome((said(1),))]

    monkeypatch.setattr(bench, "_play", play)
    prepared = FakeReference().prepare(stream(example()))
    prepared = type(prepared)(prepared.stream, {}, {example(): said(1)})
    verdict = check(Server(), prepared)
    assert (verdict.found, verdict.broken, verdict.counters) == ([], False, {"cp_extends": 1})
    held[:] = ["", "num_running_reqs = 1"]
    verdict = check(Server(), prepared)
    assert verdict.broken
    assert verdict.found == ["the server: cp still holds num_running_reqs = 1 with nothing to do"]
