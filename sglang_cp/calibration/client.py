"""Asking a running server to measure."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import httpx

from sglang_cp.calibration import CALIBRATE, TIME_EXTENDS
from sglang_cp.calibration.requests import Lengths, Times, TimingRequest
from sglang_cp.cost.calibration import Calibration, loads
from sglang_cp.cost.shape import ExtendShape
from sglang_cp.errors import SglangCpError, UsageError

_TIMEOUT_SECONDS = 600.0
"""The first measuring on a machine may compile kernels."""


class NotMeasuredError(SglangCpError):
    """The server refused; the message is its own."""


class MeasuringClient:
    """One server. Every method raises UsageError if it does not answer, or is none of ours."""

    def __init__(self, client: httpx.Client, url: str) -> None:
        """``client``: with ``url`` as its base."""
        self._client, self._url = client, url

    @property
    def server_info(self) -> dict[str, Any]:
        """The server's arguments and its schedulers' states."""
        with self._answering():
            answer = self._client.get("/server_info")
            answer.raise_for_status()
        try:
            info: dict[str, Any] = answer.json()
            state = info["internal_states"][0]
        except (ValueError, LookupError, TypeError) as error:
            raise UsageError(f"{answer.url} is no SGLang server's: give its address with --url.") from error
        if "sglang_cp_calibration" not in state:
            raise UsageError(
                f"The server at {self._url} runs without this sglang-cp: install it there and start it with CP on."
            )
        return info

    @property
    def state(self) -> dict[str, Any]:
        """``decides``: whether a calibration chooses CP or TP; ``measured``: the calibration, or None."""
        state: dict[str, Any] = self.server_info["internal_states"][0]["sglang_cp_calibration"]
        return state

    def calibrate(self) -> dict[str, Any]:
        """Have it measure anew; returns its ``state``. Raises NotMeasuredError if it refuses."""
        return self._measure({CALIBRATE: True})

    def calibration(self) -> Calibration | None:
        """What it has measured, or kept from an earlier start."""
        return calibration_of(self.state)

    def time(self, shapes: Sequence[ExtendShape], rounds: int) -> list[Times | None]:
        """Have it time extends in both modes; None for one that it cannot hold. Raises NotMeasuredError."""
        request = TimingRequest(extends=[Lengths.of(shape) for shape in shapes], rounds=rounds)
        timed = self._measure({TIME_EXTENDS: request.model_dump()})["timed"]
        return [None if times is None else Times.model_validate(times) for times in timed]

    def _measure(self, asked: dict[str, Any]) -> dict[str, Any]:
        _ = self.server_info  # a server that is none of ours would take this for its own argument
        with self._answering():
            answer = self._client.post("/set_internal_state", json={"server_args": asked})
            answer.raise_for_status()
        state = self.state
        if not all(answer.json()):
            raise NotMeasuredError(state["refused"] or "The server refused: its log says why.")
        return state

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPStatusError as error:
            raise _refused(self._url, error.response) from error
        except httpx.HTTPError as error:
            raise _no_answer(self._url, error) from error


@contextlib.contextmanager
def connected(url: str, api_key: str | None = None) -> Iterator[MeasuringClient]:
    """A client of the server at ``url``. Raises UsageError for what is no address, or no key."""
    if api_key is not None and not api_key.isascii():
        raise UsageError("--api-key has letters that no HTTP header carries: give the key that the server was given.")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        client = httpx.Client(base_url=url, headers=headers, timeout=_TIMEOUT_SECONDS)
    except httpx.InvalidURL as error:
        raise _no_answer(url, error) from error
    with client:
        yield MeasuringClient(client, url)


def calibration_of(state: dict[str, Any]) -> Calibration | None:
    """The calibration in a ``state``."""
    measured = state["measured"]
    return None if measured is None else loads(json.dumps(measured), "The server's calibration")


def _refused(url: str, answer: httpx.Response) -> UsageError:
    """What to do about an answer that is none."""
    way_out = {401: "give its key with --api-key", 403: "give its admin key with --api-key"}.get(
        answer.status_code,
        "its log says why" if answer.is_server_error else "give an SGLang server's address with --url",
    )
    return UsageError(f"The server at {url} answered {answer.status_code} to {answer.url.path}: {way_out}.")


def _no_answer(url: str, error: Exception) -> UsageError:
    if isinstance(error, httpx.UnsupportedProtocol):
        return UsageError(f"--url {url!r} is no address of a server: give one that begins with http:// or https://.")
    return UsageError(f"The server at {url} does not answer ({error}): give its address with --url.")
