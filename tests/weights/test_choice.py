"""Which source is taken, one rank at a time: what the others say is known."""

from types import SimpleNamespace

import pytest
import torch

from sglang_cp import peer_memory
from sglang_cp.errors import UsageError
from sglang_cp.ranks import StepFailedError
from sglang_cp.weights import choice
from sglang_cp.weights.choice import make_source
from sglang_cp.weights.kind import SourceKind

GPU = torch.device("cuda", 0)


@pytest.fixture
def world(monkeypatch):
    """Two ranks on one host whose GPUs can read each other; ``probe`` is what reading symmetric memory raises."""
    world = SimpleNamespace(hosts=["a", "a"], peers=True, probe=None)

    def together(group, step):
        try:
            return step()
        except Exception as error:
            raise StepFailedError(str(error)) from error

    def probe(group, device):
        if world.probe:
            raise StepFailedError(world.probe)

    monkeypatch.setattr(
        peer_memory, "exchange", lambda group, mine: [(host, rank) for rank, host in enumerate(world.hosts)]
    )
    monkeypatch.setattr(peer_memory, "together", together)
    monkeypatch.setattr(peer_memory, "_probe", probe)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda device, peer: world.peers)
    monkeypatch.setattr(choice, "SymmetricMemorySource", lambda *_: "symmetric memory")
    monkeypatch.setattr(choice, "ProcessGroupSource", lambda ranks: "process group")
    monkeypatch.setattr(choice.dist, "get_process_group_ranks", lambda group: [0, 1])
    return world


def chosen(kind, device=GPU, memory_saver=False):
    return make_source(SourceKind(kind), [], None, device, memory_saver=memory_saver)


def test_auto_takes_symmetric_memory_where_every_rank_can_have_it(world):
    assert chosen("auto") == "symmetric memory"
    assert chosen("process-group") == "process group"


OBSTACLES = {
    "several hosts": ({"hosts": ["a", "b"]}, "the ranks run on several hosts"),
    "no peer access": ({"peers": False}, "GPU 0 cannot read the memory of GPU 1"),
    "no symmetric memory in torch": ({"probe": "not built with it"}, "not built with it"),
}


@pytest.mark.parametrize(("changes", "sentence"), OBSTACLES.values(), ids=OBSTACLES)
def test_where_it_cannot_be_had_auto_falls_back_and_an_order_is_refused(world, changes, sentence):
    vars(world).update(changes)
    assert chosen("auto") == "process group"
    with pytest.raises(UsageError, match=sentence):
        chosen("symmetric-memory")


def test_weights_that_must_be_freed_do_not_go_into_symmetric_memory(world):
    assert chosen("auto", memory_saver=True) == "process group"
    with pytest.raises(UsageError, match="--enable-memory-saver"):
        chosen("symmetric-memory", memory_saver=True)


def test_on_the_cpu_it_must_be_asked_for(world):
    assert chosen("auto", torch.device("cpu")) == "process group"
    assert chosen("symmetric-memory", torch.device("cpu")) == "symmetric memory"
