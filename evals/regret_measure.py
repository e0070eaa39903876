"""Timing a grid of extends in both modes on a running server, whose own calibration is to be judged by them."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evals.arms import Arm, tiny_model
from evals.regret_times import Timed
from evals.server import running
from sglang_cp.calibration.cache import DIRECTORY
from sglang_cp.calibration.client import MeasuringClient, connected
from sglang_cp.cost.calibration import Calibration
from sglang_cp.cost.shape import ExtendShape
from sglang_cp.errors import UsageError


@dataclass(frozen=True)
class Measured:
    """What a server said.

    Attributes:
        calibration: the one it chooses by.
        timed: the grid's extends that it can hold and that the calibration was not fitted to.
        fitted: the grid's extends left out because the calibration was fitted to them.
        too_large: those left out because chunk, context, pool or batch cannot hold them.
        on_cpu: whether it runs on the CPU reference platform.
    """

    calibration: Calibration
    timed: list[Timed]
    fitted: int
    too_large: int
    on_cpu: bool


def measure(
    client: MeasuringClient, shapes: Sequence[ExtendShape], rounds: int, progress: Callable[[int], None]
) -> Measured:
    """Time ``shapes``, one after the other.

    Args:
        client: of an idle server; one that has no calibration yet measures one.
        shapes: the grid.
        rounds: of each in each mode.
        progress: is told how many are done.

    Raises:
        UsageError: the server does not answer, or can hold none of them.
        NotMeasuredError: it refuses.
    """
    info = client.server_info
    calibration = client.calibration()
    if calibration is None:
        client.calibrate()
        calibration = client.calibration()
        assert calibration is not None  # it did not refuse
    known = {measurement.shape for measurement in calibration.to_fit().measurements}
    unknown = [shape for shape in shapes if shape not in known]
    timed = []
    for done, shape in enumerate(unknown):
        progress(done)
        (times,) = client.time([shape], rounds)
        if times is not None:
            timed.append(Timed.of(shape, times))
    if not timed:
        raise UsageError("The server can hold no extend of the grid: give it more --chunked-prefill-size, or --small.")
    return Measured(
        calibration, timed, len(shapes) - len(unknown), len(unknown) - len(timed), on_cpu=info["device"] == "cpu"
    )


@contextlib.contextmanager
def tiny_server(tp_size: int) -> Iterator[MeasuringClient]:
    """A tiny GLM-5.x on CPU ranks that decides by a calibration it has just measured. Raises ServerError."""
    arm = Arm(f"tp{tp_size}-auto", tp_size, "sharded", min_tokens="auto", chunk=512)
    with tempfile.TemporaryDirectory(prefix="sglang-cp-regret-") as folder:
        spec = arm.spec(tiny_model(Path(folder)), "float32")
        spec = replace(spec, env={**spec.env, DIRECTORY: folder})
        with running(spec, Path(folder)) as server, connected(server.url) as client:
            yield client
