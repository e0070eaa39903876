"""The command ``sglang-cp calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def calibrate(
    url: Annotated[str, typer.Option(help="Of the server.")] = "http://127.0.0.1:30000",
    output: Annotated[Path | None, typer.Option(help="Also write the calibration here, for `sglang-cp plan`.")] = None,
    api_key: Annotated[str | None, typer.Option(help="The server's --admin-api-key or --api-key.")] = None,
) -> None:
    """Measure extends in both modes on an idle server, in seconds, and show how well the cost model meets them.

    The server keeps the result for its next start. With --cp-min-tokens auto it decides by it from now on.
    """
    import time

    from rich.console import Console

    from sglang_cp.calibration.client import calibration_of, connected
    from sglang_cp.calibration.report import break_even_text, residuals_text, table
    from sglang_cp.cost.calibration import write_calibration
    from sglang_cp.cost.files import check_place

    if output is not None:
        check_place(output)
    with connected(url, api_key) as client:
        start = time.perf_counter()
        state = client.calibrate()
        seconds = time.perf_counter() - start
    calibration = calibration_of(state)
    assert calibration is not None  # it did not refuse
    if output is not None:
        write_calibration(output, calibration)
    console = Console(highlight=False)
    console.print(table(calibration))
    text = f"{residuals_text(calibration)}; by these times {break_even_text(calibration.to_fit().model)}."
    console.print(text[0].upper() + text[1:])
    console.print(f"Measuring took {seconds:.1f} s, kernels that were compiled for it included.")
    if not state["decides"]:
        console.print("The server keeps its fixed threshold; it decides by these times with --cp-min-tokens auto.")
