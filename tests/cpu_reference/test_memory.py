import torch

from sglang_cp.cpu_reference import memory
from sglang_cp.cpu_reference.kernels import symmetric_memory


def test_tensors_count_once_while_they_live_and_peers_do_not():
    before = memory.live_tensor_bytes()
    mine = torch.zeros(1000)
    view = mine[10:20]
    peers = torch.zeros(500)
    symmetric_memory.peer_addresses.add(peers.data_ptr())
    try:
        assert memory.live_tensor_bytes() - before == 4000
    finally:
        symmetric_memory.peer_addresses.clear()
    del mine, peers
    assert memory.live_tensor_bytes() - before == 4000  # the view holds the storage
    del view
    assert memory.live_tensor_bytes() == before


def test_a_nominal_device_has_what_its_tensors_leave(monkeypatch):
    monkeypatch.setenv("SGLANG_CP_CPU_MEMORY_MIB", "64")
    monkeypatch.setattr(memory, "live_tensor_bytes", lambda: 16 << 20)
    assert memory.available_memory(lambda *_: 0.0, "cpu", 0) == 48 / 1024


def test_without_a_nominal_device_it_is_the_hosts(monkeypatch):
    monkeypatch.delenv("SGLANG_CP_CPU_MEMORY_MIB", raising=False)
    assert memory.available_memory(lambda *_: 7.5, "cpu", 0) == 7.5
