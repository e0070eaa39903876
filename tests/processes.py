"""Several ranks as real processes, on the CPU with the reference twin of symmetric memory, or on GPUs."""

import os
import socket

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
import torch.multiprocessing

from sglang_cp.cpu_reference.kernels import symmetric_memory as cpu_twin


def on_ranks(size, device_type, body):
    """``body(rank, group, device)`` on each of ``size`` processes, ``group`` being of gloo.

    With ``cuda`` each takes a GPU of its own, or all share the only one (TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES=1).
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(probe.getsockname()[1]))
    torch.multiprocessing.spawn(_run, (size, device_type, body), nprocs=size)


def _run(rank, size, device_type, body):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size)
    if device_type == "cpu":
        device = torch.device("cpu")
        symmetric_memory.empty, symmetric_memory.rendezvous = cpu_twin.empty, cpu_twin.rendezvous
    else:
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    body(rank, dist.new_group(list(range(size)), backend="gloo"), device)
    dist.destroy_process_group()
