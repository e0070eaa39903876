"""A plugin for SGLang that plants one fault in rank 1, named in a file; a server does not outlive any of them.

Each is planted in layer 1 of an extend, when the other rank has begun to wait for this one.
"""

import os
import signal
from pathlib import Path

KILLED, STOPPED, OUT_OF_MEMORY = "killed", "stopped in a pull", "out of memory"
FILE = "PLANTED_FAULT_FILE"


def planted(fault: str) -> bool:
    from sglang.srt.runtime_context import get_parallel

    path = Path(os.environ[FILE])
    return path.exists() and path.read_text() == fault and get_parallel().tp_rank == 1


def before_layer(layer, positions, hidden_states, forward_batch, *_, **__):
    if layer.layer_id != 1 or not forward_batch.forward_mode.is_extend():
        return
    if planted(KILLED):
        os.kill(os.getpid(), signal.SIGKILL)
    if planted(OUT_OF_MEMORY):
        import torch

        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB (planted).")


class Stopped:
    """A pull that this rank never takes part in; it stops where it would use the shards."""

    def wait(self):
        os.kill(os.getpid(), signal.SIGSTOP)


def around_pull(pull, source, layer, *arguments):
    return Stopped() if layer == 1 and planted(STOPPED) else pull(source, layer, *arguments)


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.models.deepseek_v2.DeepseekV2DecoderLayer.forward", before_layer, HookType.BEFORE)
    for source in ("source.ProcessGroupSource", "symmetric_memory.SymmetricMemorySource"):
        HookRegistry.register(f"sglang_cp.weights.{source}.pull", around_pull, HookType.AROUND)
