"""The memory of a nominal device, so that a pool's size is the same on every machine and can be accounted to the byte.

SGLang sizes the KV pool by the host's free memory, which anything on the host moves. With `SGLANG_CP_CPU_MEMORY_MIB`
each rank has that much instead, less what its own tensors occupy.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from sglang_cp.cpu_reference.kernels import symmetric_memory
from sglang_cp.cpu_reference.settings import nominal_memory_bytes


def available_memory(
    upstream: Callable[..., float],
    device: str,
    gpu_id: int,
    distributed: bool = False,
    empty_cache: bool = True,
    cpu_group: Any = None,
) -> float:
    """Around upstream's `get_available_gpu_memory`: GiB that are free, with `distributed` on the fullest rank."""
    nominal = nominal_memory_bytes()
    if nominal is None:
        return upstream(device, gpu_id, distributed, empty_cache, cpu_group)
    free = torch.tensor(nominal - live_tensor_bytes(), dtype=torch.int64)
    if distributed:
        dist.all_reduce(free, op=dist.ReduceOp.MIN, group=cpu_group)
    return int(free) / (1 << 30)


def live_tensor_bytes() -> int:
    """Bytes of the storages that this process's tensors hold, each counted once; other ranks' memory is not counted."""
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        # type(), because isinstance() would wake upstream's lazy modules; upstream also keeps meta tensors.
        if issubclass(type(thing), torch.Tensor) and thing.device.type == "cpu" and thing.layout is torch.strided:
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    peers = symmetric_memory.peer_addresses()
    return sum(size for address, size in storages.items() if address not in peers)
