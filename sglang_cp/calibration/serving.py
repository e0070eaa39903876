"""When a server measures: before it serves with ``--cp-min-tokens auto``, and when it is asked to while it is idle."""

from __future__ import annotations

import logging
import time
from typing import Any

from sglang_cp.calibration.report import break_even_text, residuals_text
from sglang_cp.calibration.requests import Times, parsed
from sglang_cp.calibration.server import cached, measured, server_key, timed
from sglang_cp.calibration.synthetic import NoRoomError
from sglang_cp.errors import SglangCpError, UsageError
from sglang_cp.ranks import StepFailedError, exchange
from sglang_cp.startup import unmeasurable_reasons

logger = logging.getLogger(__name__)


class RefusedError(SglangCpError):
    """The server cannot measure now; why, and the way out."""


def before_serving(scheduler: Any, strategy: Any) -> None:
    """With ``auto``: have ``strategy`` decide by a calibration, cached or measured now. Every rank makes this call.

    Where extends cannot be measured, the default threshold stays and the first rank's log says why.
    """
    if not strategy.auto or strategy.placement is None:
        return
    first = strategy.cp_rank == 0
    reasons = unmeasurable_reasons(scheduler.server_args)
    try:
        if reasons:
            raise RefusedError(f"extends cannot be measured {', '.join(reasons)}")
        key = server_key(scheduler, strategy.placement.source_name)
        found = cached(scheduler, key)
        if found is not None:
            strategy.adopt(found)
            if first:
                model = found.to_fit().model
                logger.info("CP: from an earlier start: %s; %s", residuals_text(found), break_even_text(model))
            return
        _measure_and_adopt(scheduler, strategy)
    except (RefusedError, StepFailedError, NoRoomError) as error:
        if first:
            logger.warning("CP: --cp-min-tokens auto falls back to its default threshold: %s", error)


def measure_again(scheduler: Any, strategy: Any) -> None:
    """Measure on a server that serves but is idle. Every rank makes this call.

    Raises:
        RefusedError: on every rank, if it cannot measure now or at all.
    """
    _require_idle(scheduler, strategy)
    try:
        _measure_and_adopt(scheduler, strategy)
    except (StepFailedError, NoRoomError) as error:
        raise RefusedError(str(error)) from error


def time_extends(scheduler: Any, strategy: Any, asked: Any) -> list[Times | None]:
    """Time the extends of ``asked``, a ``TimingRequest``, on a server that serves but is idle. Every rank does so.

    Returns:
        For each its times; None for an extend that the server cannot hold.

    Raises:
        RefusedError: on every rank, if it cannot measure now or at all.
    """
    _require_idle(scheduler, strategy)
    try:
        request = parsed(asked)
        return timed(scheduler, strategy, [lengths.to_shape() for lengths in request.extends], request.rounds)
    except (UsageError, NoRoomError) as error:
        raise RefusedError(str(error)) from error


def _require_idle(scheduler: Any, strategy: Any) -> None:
    if strategy.placement is None:
        raise RefusedError("Every extend of this server runs as plain TP: its log says because of what.")
    reasons = unmeasurable_reasons(scheduler.server_args)
    if reasons:
        raise RefusedError(f"Extends cannot be measured {', '.join(reasons)}.")
    busy = not scheduler.is_fully_idle() or scheduler._engine_paused or bool(scheduler.weight_updater.offload_tags)
    if any(exchange(scheduler.tp_cpu_group, busy)):
        raise RefusedError("The server is busy, paused or has released its memory: try again when it is idle.")


def _measure_and_adopt(scheduler: Any, strategy: Any) -> None:
    start = time.perf_counter()
    calibration = measured(scheduler, strategy, server_key(scheduler, strategy.placement.source_name))
    strategy.adopt(calibration)
    if strategy.cp_rank == 0:
        logger.info(
            "CP: %s; took %.1f s; %s",
            residuals_text(calibration),
            time.perf_counter() - start,
            break_even_text(calibration.to_fit().model),
        )
