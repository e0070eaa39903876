import os

import torch

from sglang_cp.cpu_reference import memory
from sglang_cp.cpu_reference.kernels import symmetric_memory


def test_tensors_count_once_while_they_live():
    before = memory.live_tensor_bytes()
    mine = torch.zeros(1000)
    view = mine[10:20]
    assert memory.live_tensor_bytes() - before == 4000
    del mine
    assert memory.live_tensor_bytes() - before == 4000  # the view holds the storage
    del view
    assert memory.live_tensor_bytes() == before


def mapped(owner):
    """A page of symmetric memory that process ``owner`` made."""
    file = os.memfd_create(f"{symmetric_memory._NAME}{owner}")
    os.ftruncate(file, 4096)
    tensor = torch.from_file(f"/proc/self/fd/{file}", shared=True, size=1024, dtype=torch.float32)
    os.close(file)
    return tensor


def test_peers_memory_does_not_count_while_it_is_mapped():
    before = memory.live_tensor_bytes()
    mine, peers = mapped(os.getpid()), mapped(os.getpid() + 1)
    assert symmetric_memory.peer_addresses() == {peers.data_ptr()}
    assert memory.live_tensor_bytes() - before == 4096
    del mine, peers
    assert symmetric_memory.peer_addresses() == set()  # the next tensor may lie there
    assert memory.live_tensor_bytes() == before


def test_a_nominal_device_has_what_its_tensors_leave(monkeypatch):
    monkeypatch.setenv("SGLANG_CP_CPU_MEMORY_MIB", "64")
    monkeypatch.setattr(memory, "live_tensor_bytes", lambda: 16 << 20)
    assert memory.available_memory(lambda *_: 0.0, "cpu", 0) == 48 / 1024


def test_without_a_nominal_device_it_is_the_hosts(monkeypatch):
    monkeypatch.delenv("SGLANG_CP_CPU_MEMORY_MIB", raising=False)
    assert memory.available_memory(lambda *_: 7.5, "cpu", 0) == 7.5
