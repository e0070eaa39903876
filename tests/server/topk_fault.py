"""A plugin for SGLang that plants a fault into top-k while a file exists: rank 1 loses each row's best key."""

import os
from pathlib import Path

FILE = "PLANTED_TOPK_FAULT_FILE"


def lose_best(result, score, starts, lengths, topk):
    from sglang.srt.runtime_context import get_parallel

    if not Path(os.environ[FILE]).exists() or get_parallel().tp_rank != 1:
        return result
    best = score.gather(1, (result.clamp_min(0) + starts.reshape(-1, 1)).long()).masked_fill(result < 0, float("-inf"))
    return result.scatter(1, best.argmax(1, keepdim=True), -1)


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang_cp.cpu_reference.kernels.topk.select", lose_best, HookType.AFTER)
