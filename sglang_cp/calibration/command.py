"""The command ``sglang-cp calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sglang_cp.calibration import CALIBRATE
from sglang_cp.errors import SglangCpError, UsageError

if TYPE_CHECKING:
    import httpx

_TIMEOUT_SECONDS = 600.0
"""The first measuring on a machine may compile kernels."""


class NotMeasuredError(SglangCpError):
    """The server refused; the message is its own."""


def calibrate(
    url: Annotated[str, typer.Option(help="Of the server.")] = "http://127.0.0.1:30000",
    output: Annotated[Path | None, typer.Option(help="Also write the calibration here, for `sglang-cp plan`.")] = None,
    api_key: Annotated[str | None, typer.Option(help="The server's --admin-api-key or --api-key.")] = None,
) -> None:
    """Measure extends in both modes on an idle server, in seconds, and show how well the cost model meets them.

    The server keeps the result for its next start. With --cp-min-tokens auto it decides by it from now on.
    """
    import httpx
    from rich.console import Console

    from sglang_cp.calibration.report import break_even_text, residuals_text, table
    from sglang_cp.cost.calibration import write_calibration

    if output is not None and not output.parent.is_dir():
        raise UsageError(f"--output {output} cannot be written: {output.parent} is not a directory.")
    if api_key is not None and not api_key.isascii():
        raise UsageError("--api-key has letters that no HTTP header carries: give the key that the server was given.")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=_TIMEOUT_SECONDS) as client:
            state = _measured_state(client, url)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UsageError(f"The server at {url} does not answer ({error}): give its address with --url.") from error
    calibration = _calibration(state)
    if output is not None:
        write_calibration(output, calibration)
    console = Console(highlight=False)
    console.print(table(calibration))
    text = f"{residuals_text(calibration)}; by these times {break_even_text(calibration.to_fit().model)}."
    console.print(text[0].upper() + text[1:])
    if not state["decides"]:
        console.print("The server keeps its fixed threshold; it decides by these times with --cp-min-tokens auto.")


def _measured_state(client: httpx.Client, url: str) -> dict[str, Any]:
    """Have the server measure; returns what it says of it."""
    if "sglang_cp_calibration" not in _state(client):
        raise UsageError(f"The server at {url} runs without this sglang-cp: install it there and start it with CP on.")
    answer = client.post("/set_internal_state", json={"server_args": {CALIBRATE: True}})
    answer.raise_for_status()
    state: dict[str, Any] = _state(client)["sglang_cp_calibration"]
    if not all(answer.json()):
        raise NotMeasuredError(state["refused"] or "The server refused: its log says why.")
    return state


def _state(client: httpx.Client) -> dict[str, Any]:
    answer = client.get("/server_info")
    answer.raise_for_status()
    try:
        state: dict[str, Any] = answer.json()["internal_states"][0]
    except (ValueError, LookupError, TypeError) as error:
        raise UsageError(f"{answer.url} is no SGLang server's: give its address with --url.") from error
    return state


def _calibration(state: dict[str, Any]) -> Any:
    import json

    from sglang_cp.cost.calibration import loads

    return loads(json.dumps(state["measured"]), "The server's calibration")
