"""An SGLang plugin that lets all ranks of a server share the only GPU: for correctness, never for speed.

NCCL refuses two ranks on one GPU of one host, so each rank names a host of its own (``NCCL_HOSTID``) and NCCL talks
through sockets. Loaded with :func:`evals.plugins.with_plugin`; this module stands alone, as a plugin must.
"""

from __future__ import annotations

import os
from typing import Any

ENVIRONMENT = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1",
}


def register() -> None:
    """Register the hooks; SGLang applies them after all plugins have run."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    os.environ.update(ENVIRONMENT)
    HookRegistry.register("sglang.srt.server_args.ServerArgs.check_server_args", _share, HookType.AFTER)
    HookRegistry.register("sglang.srt.managers.scheduler.configure_scheduler_process", _name_a_host, HookType.BEFORE)


def _share(result: Any, server_args: Any) -> Any:
    """The GPU of the next rank is the same: SGLang's own check, which has just passed, wants a step of at least 1."""
    server_args.gpu_id_step = 0
    return result


def _name_a_host(server_args: Any, gpu_id: int, tp_rank: int, *_: Any) -> None:
    os.environ["NCCL_HOSTID"] = f"rank-{tp_rank}"
