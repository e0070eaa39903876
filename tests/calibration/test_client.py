"""Asking a server to measure, as it is asked over HTTP."""

import pytest

from sglang_cp.calibration.client import NotMeasuredError, connected
from sglang_cp.calibration.requests import Times, parsed
from sglang_cp.cost.shape import ExtendShape
from sglang_cp.errors import UsageError
from tests.calibration.conftest import EXAMPLE

SHAPES = [ExtendShape.of([8, 5], [0, 64]), ExtendShape.of([9999])]


@pytest.fixture
def client(server):
    with connected(server.url) as made:
        yield made


def test_the_servers_calibration_is_none_until_it_measured(server, client):
    assert client.calibration() is None
    client.calibrate()
    assert client.calibration() == EXAMPLE


def test_extends_are_asked_for_as_the_server_parses_them_and_times_are_read_back(server, client):
    server.state["timed"] = [{"tp": [0.2], "cp": [0.1]}, None]
    assert client.time(SHAPES, 3) == [Times(tp=[0.2], cp=[0.1]), None]
    ((path, body),) = server.asked
    assert path == "/set_internal_state"
    request = parsed(body["server_args"]["sglang_cp_time_extends"])
    assert ([lengths.to_shape() for lengths in request.extends], request.rounds) == (SHAPES, 3)


def test_a_refusal_is_the_servers_own_sentence(server, client):
    server.accepts, server.state["refused"] = False, "The server is busy."
    with pytest.raises(NotMeasuredError, match="The server is busy"):
        client.time(SHAPES, 1)
    server.state["refused"] = None
    with pytest.raises(NotMeasuredError, match="its log says why"):
        client.time(SHAPES, 1)


def test_a_server_without_the_package_is_asked_for_nothing(server, client):
    server.with_package = False
    for ask in (client.calibrate, client.calibration, lambda: client.time(SHAPES, 1)):
        with pytest.raises(UsageError, match="runs without this sglang-cp"):
            ask()
    assert server.asked == []


@pytest.mark.parametrize(
    ("status", "way_out"),
    [(401, "give its key with --api-key"), (403, "--api-key"), (404, "with --url"), (500, "its log says why")],
)
def test_an_answer_that_is_none_has_a_way_out_of_its_own(server, client, status, way_out):
    server.status = status
    with pytest.raises(UsageError, match=f"answered {status} to /server_info: .*{way_out}"):
        client.calibrate()


def test_a_server_that_is_none_of_sglangs_is_said_so(server, client, monkeypatch):
    for answer in ([], {}, {"internal_states": []}):
        monkeypatch.setattr(server, "answer", lambda *_, answer=answer: answer)
        with pytest.raises(UsageError, match="is no SGLang server's"):
            client.calibration()
