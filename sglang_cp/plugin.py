"""The SGLang plugin (entry point ``sglang.srt.plugins``): start-up checks that hold on an unpatched tree too, and the
server's CP counters.

SGLang only logs a plugin that fails, so :func:`check_loaded` is asked at start-up whether this one took effect.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

from sglang_cp.counters import COUNTERS
from sglang_cp.errors import SglangCpError, UsageError
from sglang_cp.layout import TokenLayout
from sglang_cp.memory import weight_bytes

ORIGINS = ("disk", "distributed", "tensor", "ipc")
"""Where SGLang takes new weights from while it serves."""

_CHECKED_ARGS = "sglang.srt.server_args.ServerArgs._handle_legacy_cp_arguments"
_CHECKED_PROCESS = "sglang.srt.managers.scheduler.configure_scheduler_process"
_INTERNAL_STATE = "sglang.srt.managers.scheduler.Scheduler.get_internal_state"
_STATIC_EXTEND = "sglang.srt.layers.utils.cp_utils.prepare_context_parallel_metadata"
_WEIGHT_UPDATER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager."
_WEIGHT_CHANGES = tuple(_WEIGHT_UPDATER + f"update_weights_from_{origin}" for origin in ORIGINS)


def register() -> None:
    """Register the hooks; SGLang applies them after all plugins have run."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_CHECKED_ARGS, _check_patched, HookType.BEFORE)
    HookRegistry.register(_CHECKED_PROCESS, _check_patched, HookType.BEFORE)
    HookRegistry.register(_INTERNAL_STATE, _add_state, HookType.AFTER)
    HookRegistry.register(_STATIC_EXTEND, _count_static_extend, HookType.AFTER)
    for change in _WEIGHT_CHANGES:
        HookRegistry.register(change, _change_weights, HookType.AROUND)
    report_in_one_sentence()


def report_in_one_sentence() -> None:
    """Let an uncaught error of ours end this process with its sentence, without a traceback; the exit code stays 1."""
    sys.excepthook = partial(_one_sentence, sys.excepthook)


def check_loaded() -> None:
    """Raise UsageError if SGLang did not apply this plugin's hooks in this process."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    if (
        not {_CHECKED_ARGS, _CHECKED_PROCESS, _INTERNAL_STATE, _STATIC_EXTEND, *_WEIGHT_CHANGES}
        <= HookRegistry._patched
    ):
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


def _add_state(result: Any, scheduler: Any, *_: Any, **__: Any) -> Any:
    """What ``/server_info`` says of CP: counters since start, and memory in bytes of this rank."""
    result.internal_state["sglang_cp"] = COUNTERS.as_dict()
    strategy = _per_batch_strategy()
    placement = strategy.placement if strategy else None
    result.internal_state["sglang_cp_memory"] = {
        "weight_bytes": weight_bytes(scheduler.tp_worker.model_runner.model),
        "buffer_bytes": placement.buffer_bytes if placement else 0,
        "shard_source": placement.source_name if placement else None,
    }
    return result


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
    if server_args.cp_strategy == "interleave":
        layout = TokenLayout(sum(extend_seqs_len), size, rank)
        COUNTERS.count(layout, seq_lens, extend_seqs_len, server_args.get_model_config().hf_config.index_topk)
