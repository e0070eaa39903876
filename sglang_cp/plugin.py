"""The SGLang plugin (entry point ``sglang.srt.plugins``): start-up checks that hold on an unpatched tree too, and the
server's CP counters.

SGLang only logs a plugin that fails, so :func:`check_loaded` is asked at start-up whether this one took effect.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

from sglang_cp.counters import COUNTERS
from sglang_cp.errors import SglangCpError, UsageError
from sglang_cp.layout import TokenLayout

_CHECKED_ARGS = "sglang.srt.server_args.ServerArgs._handle_legacy_cp_arguments"
_CHECKED_PROCESS = "sglang.srt.managers.scheduler.configure_scheduler_process"
_INTERNAL_STATE = "sglang.srt.managers.scheduler.Scheduler.get_internal_state"
_STATIC_EXTEND = "sglang.srt.layers.utils.cp_utils.prepare_context_parallel_metadata"


def register() -> None:
    """Register the hooks; SGLang applies them after all plugins have run."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_CHECKED_ARGS, _check_patched, HookType.BEFORE)
    HookRegistry.register(_CHECKED_PROCESS, _check_patched, HookType.BEFORE)
    HookRegistry.register(_INTERNAL_STATE, _add_counters, HookType.AFTER)
    HookRegistry.register(_STATIC_EXTEND, _count_static_extend, HookType.AFTER)
    report_in_one_sentence()


def report_in_one_sentence() -> None:
    """Let an uncaught error of ours end this process with its sentence, without a traceback; the exit code stays 1."""
    sys.excepthook = partial(_one_sentence, sys.excepthook)


def check_loaded() -> None:
    """Raise UsageError if SGLang did not apply this plugin's hooks in this process."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    if not {_CHECKED_ARGS, _CHECKED_PROCESS, _INTERNAL_STATE, _STATIC_EXTEND} <= HookRegistry._patched:
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


def _add_counters(result: Any, *_: Any, **__: Any) -> Any:
    result.internal_state["sglang_cp"] = COUNTERS.as_dict()
    return result


def _count_static_extend(
    _: Any, num_rows: int, rank: int, size: int, seq_lens: list[int], extend_seqs_len: list[int], *__: Any, **___: Any
) -> None:
    """Count an extend that upstream's own interleave CP (``--cp-attn-weights replicated``) is about to split."""
    from sglang.srt.server_args import get_global_server_args

    server_args = get_global_server_args()
    if server_args.cp_strategy == "interleave":
        layout = TokenLayout(sum(extend_seqs_len), size, rank)
        COUNTERS.count(layout, seq_lens, extend_seqs_len, server_args.get_model_config().hf_config.index_topk)
