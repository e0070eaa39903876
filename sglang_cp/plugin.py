"""The SGLang plugin (entry point ``sglang.srt.plugins``): start-up checks that hold on an unpatched tree too, the
server's CP counters and its calibration.

SGLang only logs a plugin that fails, so :func:`check_loaded` is asked at start-up whether this one took effect.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from types import TracebackType
from typing import Any

from sglang_cp.calibration import CALIBRATE, TIME_EXTENDS
from sglang_cp.counters import COUNTERS, DECISIONS
from sglang_cp.decision import mode_text
from sglang_cp.errors import SglangCpError, UsageError
from sglang_cp.layout import TokenLayout
from sglang_cp.memory import weight_bytes

logger = logging.getLogger(__name__)

ORIGINS = ("disk", "distributed", "tensor", "ipc")
"""Where SGLang takes new weights from while it serves."""

_SCHEDULER = "sglang.srt.managers.scheduler."
_OUTCOME = "_sglang_cp_measuring"
"""Where the scheduler keeps what the last such call came to: SGLang answers the caller with true or false only."""
_RECORDER = "_sglang_cp_metrics"
"""Where the scheduler keeps what records its metrics, with --enable-metrics."""
_static_extends: list[int] = []
"""Rows of the extend of the batch under way, if upstream's static CP split one: a draft model's is no second one."""
_WEIGHT_UPDATER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager."


def register() -> None:
    """Register the hooks; SGLang applies them after all plugins have run."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, (hook, kind) in _hooks().items():
        HookRegistry.register(target, hook, HookType(kind))
    report_in_one_sentence()


def _hooks() -> dict[str, tuple[Callable[..., Any], str]]:
    """What is hooked, by which function, and when it is called: upstream's HookType."""
    return {
        "sglang.srt.server_args.ServerArgs._handle_legacy_cp_arguments": (_check_patched, "before"),
        _SCHEDULER + "configure_scheduler_process": (_check_patched, "before"),
        "sglang.srt.distributed.parallel_state.init_distributed_environment": (_check_alike, "after"),
        "sglang.srt.managers.scheduler_components.invariant_checker.create_scheduler_watchdog": (_watch, "after"),
        _SCHEDULER + "Scheduler.run_event_loop": (_serve, "around"),
        _SCHEDULER + "Scheduler.run_batch": (_note_mode, "after"),
        _SCHEDULER + "Scheduler.get_internal_state": (_add_state, "after"),
        _SCHEDULER + "Scheduler.set_internal_state": (_set_state, "around"),
        "sglang.srt.layers.utils.cp_utils.prepare_context_parallel_metadata": (_count_static_extend, "after"),
        **{_WEIGHT_UPDATER + f"update_weights_from_{origin}": (_change_weights, "around") for origin in ORIGINS},
    }


def report_in_one_sentence() -> None:
    """Let an uncaught error of ours end this process with its sentence, without a traceback; the exit code stays 1."""
    sys.excepthook = partial(_one_sentence, sys.excepthook)


def check_loaded() -> None:
    """Raise UsageError if SGLang did not apply this plugin's hooks in this process."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    if not _hooks().keys() <= HookRegistry._patched:
        raise UsageError(
            "--enable-prefill-cp needs the SGLang plugin sglang_cp, which was not loaded in this process: "
            "name sglang_cp in SGLANG_PLUGINS if that is set, else look for the plugin's error further up in the log."
        )


def _one_sentence(
    otherwise: Callable[..., None], kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    if isinstance(error, SglangCpError):
        print(f"sglang-cp: {error}", file=sys.stderr)
    else:
        otherwise(kind, error, traceback)


def _check_patched(server_args: Any, *_: Any, **__: Any) -> None:
    """Before the CP arguments are read, and in each scheduler process: is this tree patched with our series?"""
    if server_args.enable_prefill_cp:
        from sglang_cp.patching import verify_applied

        verify_applied()


def _check_alike(_: Any, *__: Any, **___: Any) -> None:
    """When the ranks have met, and before they form the groups that CP's flags decide about."""
    from sglang.srt.server_args import get_global_server_args

    server_args = get_global_server_args()
    if server_args.enable_prefill_cp:
        import torch.distributed as dist

        from sglang_cp.alike import check_alike, this_ranks_word

        store = dist.distributed_c10d._get_default_store()
        check_alike(store, dist.get_rank(), dist.get_world_size(), this_ranks_word(server_args))


def _watch(watchdog: Any, scheduler: Any, *_: Any, **__: Any) -> None:
    """When the watchdog is made: let it also say, if a batch does not end, what CP has to do with that."""
    upstreams = watchdog.dump_info
    watchdog.dump_info = lambda: "\n".join(filter(None, [upstreams(), _where_it_stands(scheduler)]))


def _where_it_stands(scheduler: Any) -> str:
    """How the batch that does not end runs, as far as the host knows, and what it waits for."""
    strategy = _per_batch_strategy()
    if strategy is None or strategy.placement is None:
        return ""
    mode = _mode_of_current(strategy, scheduler)
    parts = [f"this batch runs as {mode}"] if mode else []
    if strategy.placement.awaited:
        parts += [f"this rank waits for {strategy.placement.awaited}: another rank has stopped, its own log says why"]
    return f"CP: {'; '.join(parts)}." if parts else ""


def _mode_of_current(strategy: Any, scheduler: Any) -> str | None:
    """How the batch at hand runs, None if that was not decided."""
    if strategy.latest:  # this one is still being issued
        decision, rows = strategy.latest
        return mode_text(decision, rows, strategy.cp_size)
    stats = scheduler.cur_batch.prefill_stats if scheduler.cur_batch else None
    return stats.cp_mode if stats else None


def _serve(original: Callable[..., Any], scheduler: Any) -> Any:
    """The event loop, until the server ends. SGLang logs an error in it; this says what CP has to do with that."""
    _before_serving(scheduler)
    try:
        return original(scheduler)
    except Exception:
        if strategy := _per_batch_strategy():
            mode = _mode_of_current(strategy, scheduler)
            logger.error(
                "CP: this rank failed%s. If the error is of a connection, another rank has ended: its own log says "
                "why, or the kernel's if it was killed.",
                f" in a batch that runs as {mode}" if mode else "",
            )
        raise


def _before_serving(scheduler: Any) -> None:
    """Before the event loop starts, when all else is ready."""
    strategy = _per_batch_strategy()
    if strategy:
        from sglang_cp.calibration.serving import before_serving

        strategy.choose_rows()
        before_serving(scheduler, strategy)
        if scheduler.metrics_reporter.current_scheduler_metrics_enabled and strategy.placement:
            from sglang_cp.metrics.recorder import make_recorder

            setattr(scheduler, _RECORDER, make_recorder(scheduler, strategy))


def _note_mode(_: Any, scheduler: Any, batch: Any, *__: Any, **___: Any) -> None:
    """Count how a batch ran, and leave it where SGLang's log line finds it, which may come after the next batch."""
    _static_extends.clear()
    strategy = _per_batch_strategy()
    latest = strategy.take_latest() if strategy else None
    recorder = getattr(scheduler, _RECORDER, None)
    if latest:
        decision, rows = latest
        DECISIONS.count(decision, rows)
        if recorder:
            stream = scheduler.forward_stream if scheduler.enable_overlap else None  # None: the current one
            recorder.extend_issued(decision, rows, stream)
        if batch.prefill_stats is not None:
            batch.prefill_stats.cp_mode = mode_text(decision, rows, strategy.cp_size)
    if recorder:
        recorder.publish()


def _add_state(result: Any, scheduler: Any, *_: Any, **__: Any) -> Any:
    """What ``/server_info`` says of CP: counters since start, memory in bytes of this rank, and the calibration."""
    state = result.internal_state
    state["sglang_cp"] = COUNTERS.as_dict()
    state["sglang_cp_decisions"] = DECISIONS.as_dict()
    strategy = _per_batch_strategy()
    placement = strategy.placement if strategy else None
    rows = strategy.rows if strategy else None
    calibration = strategy.calibration if strategy else None
    target = scheduler.tp_worker.model_runner.model
    state["sglang_cp_memory"] = {
        "weight_bytes": _weight_bytes(target),
        "draft_weight_bytes": _draft_weight_bytes(getattr(scheduler, "draft_worker", None), target),
        "buffer_bytes": placement.buffer_bytes + rows.num_bytes if placement and rows else 0,
        "shard_source": placement.source_name if placement else None,
        "row_collectives": rows.name if rows else None,
    }
    state["sglang_cp_calibration"] = {
        "decides": bool(strategy and strategy.auto and calibration),
        "measured": calibration.model_dump() if calibration else None,
        **getattr(scheduler, _OUTCOME, _outcome()),
    }
    return result


@lru_cache(maxsize=1)
def _weight_bytes(model: Any) -> int:
    """Of the one model, reckoned once: /server_info is answered between two batches, and has many modules to walk."""
    return weight_bytes(model)


@lru_cache(maxsize=1)
def _draft_weight_bytes(spec_worker: Any, target: Any) -> int:
    """Of the draft model, without what it shares with the target; 0 if drafts do not come from a model like that."""
    runner = getattr(getattr(spec_worker, "draft_worker", None), "draft_runner", None)
    return weight_bytes(runner.model, beside=target) if runner else 0


def _set_state(change: Callable[..., Any], scheduler: Any, request: Any) -> Any:
    """Around SGLang's call: measure if that is asked for, and pass anything else on."""
    if not {CALIBRATE, TIME_EXTENDS} & request.server_args.keys():
        return change(scheduler, request)
    from sglang.srt.managers.io_struct import SetInternalStateReqOutput

    outcome = _measure(scheduler, request.server_args)
    setattr(scheduler, _OUTCOME, outcome)
    return SetInternalStateReqOutput(updated=outcome["refused"] is None, server_args={})


def _measure(scheduler: Any, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Calibrate anew, or time the extends that are asked for."""
    from sglang_cp.calibration.serving import RefusedError, measure_again, time_extends

    strategy = _per_batch_strategy()
    if len(asked) > 1:
        return _outcome(refused=f"{' and '.join(sorted(asked))}: each goes in a call of its own.")
    if strategy is None:
        return _outcome(
            refused="CP is not chosen per batch here: start the server with --enable-prefill-cp and sharded weights."
        )
    try:
        if TIME_EXTENDS in asked:
            times = time_extends(scheduler, strategy, asked[TIME_EXTENDS])
            return _outcome(timed=[found and found.model_dump() for found in times])
        measure_again(scheduler, strategy)
    except RefusedError as error:
        return _outcome(refused=str(error))
    return _outcome()


def _outcome(*, refused: str | None = None, timed: list[Any] | None = None) -> dict[str, Any]:
    """Why nothing was measured, if nothing was; times of the extends that were asked for."""
    return {"refused": refused, "timed": timed}


def _change_weights(change: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around SGLang's update_weights calls: no rank pulls a shard while another changes it."""
    strategy = _per_batch_strategy()
    with strategy.weights_change() if strategy else contextlib.nullcontext():
        return change(*args, **kwargs)


def _per_batch_strategy() -> Any:
    """This process's strategy if CP is chosen per batch, else None."""
    from sglang.srt.layers.cp.base import get_cp_strategy

    strategy = get_cp_strategy()
    return strategy if hasattr(strategy, "weights_change") else None


def _count_static_extend(
    _: Any, num_rows: int, rank: int, size: int, seq_lens: list[int], extend_seqs_len: list[int], *__: Any, **___: Any
) -> None:
    """Count an extend that upstream's own interleave CP (``--cp-attn-weights replicated``) is about to split."""
    from sglang.srt.server_args import get_global_server_args

    server_args = get_global_server_args()
    if server_args.cp_strategy == "interleave" and not _static_extends:
        _static_extends.append(num_rows)
        layout = TokenLayout(sum(extend_seqs_len), size, rank)
        COUNTERS.count(layout, seq_lens, extend_seqs_len, server_args.get_model_config().hf_config.index_topk)
