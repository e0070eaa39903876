"""Both shard sources between real processes: ``python -m tests.weights.two_ranks [cpu|cuda]``.

On the CPU with the reference twin of symmetric memory. With ``cuda`` each rank takes a GPU of its own, or both share
the only one (which TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES=1 allows). Prints ``passed`` at the end.
"""

import os
import socket
import sys

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
import torch.multiprocessing

from sglang_cp.cpu_reference.kernels import symmetric_memory as cpu_twin
from sglang_cp.cpu_reference.memory import live_tensor_bytes
from sglang_cp.errors import UsageError
from sglang_cp.ranks import StepFailedError, exchange, together
from sglang_cp.weights import choice
from sglang_cp.weights.buffers import aligned
from sglang_cp.weights.choice import make_source
from sglang_cp.weights.kind import SourceKind
from sglang_cp.weights.pipeline import WeightPipeline
from sglang_cp.weights.shards import LINEARS, layer_shards
from tests.weights.fake_layer import make_layers
from tests.weights.test_pipeline import expect

SIZE, LAYERS = 2, 5


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(probe.getsockname()[1]))
    torch.multiprocessing.spawn(run, (device,), nprocs=SIZE)
    print("passed")


def run(rank: int, device_type: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=SIZE)
    if device_type == "cpu":
        device = torch.device("cpu")
        symmetric_memory.empty, symmetric_memory.rendezvous = cpu_twin.empty, cpu_twin.rendezvous
    else:
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    group = dist.new_group(list(range(SIZE)), backend="gloo")
    if device_type == "cpu":
        for kind in (SourceKind.SYMMETRIC_MEMORY, SourceKind.PROCESS_GROUP):
            takes_two_buffers_and_nothing_else(kind, rank, group, device)
    for check in (pulls_every_layer, sees_changed_weights, refuses_a_replaced_weight, fails_on_all_ranks):
        # NCCL wants a GPU a rank.
        for kind in (SourceKind.SYMMETRIC_MEMORY, SourceKind.PROCESS_GROUP)[: 2 if device_type == "cpu" else 1]:
            check(kind, rank, group, device)
    ranks_exchange_objects_of_any_length(rank, group)
    if device_type == "cpu":
        fails_when_a_rank_has_ended(rank, group, device)  # last: rank 1 is gone then
    else:
        dist.destroy_process_group()


def ranks_exchange_objects_of_any_length(rank, group):
    mine = {"floats": [0.1 + rank, 1e-300], "text": "ä" * 1000 * rank, "none": None}
    theirs = [{"floats": [0.1 + other, 1e-300], "text": "ä" * 1000 * other, "none": None} for other in range(SIZE)]
    assert exchange(group, mine) == theirs
    assert exchange(group, ("host", rank)) == [["host", other] for other in range(SIZE)]


def fails_when_a_rank_has_ended(rank, group, device):
    pipeline, _ = pipeline_of(layers_on(device), SourceKind.PROCESS_GROUP, rank, group, device)
    dist.barrier(group)
    if rank == 1:
        os._exit(0)
    pipeline.begin()
    with pytest.raises(RuntimeError, match="of attention layer 0 did not come from the other ranks: one has ended"):
        pipeline.take(0)


def layers_on(device, seed=0, scale=1.0):
    """``[layer][rank]``; larger than the probe, so that peers' views and offsets differ."""
    layers = [make_layers(SIZE, seed=seed + index, scaled=True, hidden=700 + index) for index in range(LAYERS)]
    for ranks in layers:
        for layer in ranks:
            for module in LINEARS:
                getattr(layer, module).to(device).weight.data.mul_(scale)
            layer.w_kc, layer.w_vc = layer.w_kc.to(device), layer.w_vc.to(device)
    return layers


def pipeline_of(layers, kind, rank, group, device):
    own = [ranks[rank] for ranks in layers]
    source = make_source(kind, own, group, device, memory_saver=False)
    assert source.name == kind.label
    return WeightPipeline(own, source, SIZE, device), own


def expect_extend(pipeline, layers):
    pipeline.begin()
    for index, ranks in enumerate(layers):
        expect(pipeline.take(index), ranks)


def takes_two_buffers_and_nothing_else(kind, rank, group, device):
    """Moving the weights leaves no second copy; the arena rounds each of them up to 256 bytes."""
    own = [ranks[rank] for ranks in layers_on(device)]
    before = live_tensor_bytes()
    source = make_source(kind, own, group, device, memory_saver=False)
    pipeline = WeightPipeline(own, source, SIZE, device)
    shards = [shard for layer in own for shard in layer_shards(layer)]
    rounding = sum(aligned(shard.num_bytes) - shard.num_bytes for shard in shards)
    in_arena = kind is SourceKind.SYMMETRIC_MEMORY
    assert live_tensor_bytes() - before == pipeline.buffer_bytes + (rounding if in_arena else 0)


def pulls_every_layer(kind, rank, group, device):
    layers = layers_on(device)
    pipeline, own = pipeline_of(layers, kind, rank, group, device)
    for index, ranks in enumerate(layers_on(device)):
        assert torch.equal(own[index].o_proj.weight, ranks[rank].o_proj.weight)  # decode's weights are what they were
        assert own[index].w_kc.stride() == ranks[rank].w_kc.stride()
    for _ in range(2):
        expect_extend(pipeline, layers_on(device))


def sees_changed_weights(kind, rank, group, device):
    """In place, as a loader writes them, and replaced, as post-processing may."""
    pipeline, own = pipeline_of(layers_on(device), kind, rank, group, device)
    expect_extend(pipeline, layers_on(device))
    changed = layers_on(device, seed=100)
    with pipeline.weights_change(group):
        for layer, new in zip(own, [ranks[rank] for ranks in changed], strict=True):
            layer.o_proj.weight.data.copy_(new.o_proj.weight)
            layer.o_proj.weight_scale = torch.nn.Parameter(new.o_proj.weight_scale.clone(), requires_grad=False)
            layer.q_b_proj = new.q_b_proj
            layer.w_kc.copy_(new.w_kc)
            layer.w_vc = new.w_vc
    expect_extend(pipeline, changed)


def refuses_a_replaced_weight(kind, rank, group, device):
    """Replaced behind the server's back, peers would read the old one: an error, or the new one, but never stale."""
    pipeline, own = pipeline_of(layers_on(device), kind, rank, group, device)
    changed = layers_on(device, seed=100)
    for layer, ranks in zip(own, changed, strict=True):
        vars(layer).update(vars(ranks[rank]))
    if kind is SourceKind.PROCESS_GROUP:
        expect_extend(pipeline, changed)
    else:
        with pytest.raises(RuntimeError, match=r"is not in symmetric memory any more"):
            pipeline.begin()
    own[0].w_vc = torch.zeros(1, 2, 3, device=device)
    if kind is SourceKind.SYMMETRIC_MEMORY:
        with pytest.raises(StepFailedError, match="has another size"), pipeline.weights_change(group):
            pass


def fails_on_all_ranks(kind, rank, group, device):
    """What fails on one rank is known to both, and none waits."""

    def only_rank_1():
        if rank == 1:
            raise OSError("no such thing on rank 1")

    with pytest.raises(StepFailedError, match="no such thing on rank 1"):
        together(group, only_rank_1)
    original = choice._require_peer_access
    choice._require_peer_access = lambda *_: only_rank_1()
    try:
        if kind is SourceKind.SYMMETRIC_MEMORY:
            with pytest.raises(UsageError, match=r"symmetric-memory is impossible here: no such thing on rank 1"):
                pipeline_of(layers_on(device), kind, rank, group, device)
    finally:
        choice._require_peer_access = original


if __name__ == "__main__":
    main()
