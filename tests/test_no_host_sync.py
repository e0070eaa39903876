"""A CP extend's own tensor code never waits for the device: run with fake tensors of a GPU, which have no values."""

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from sglang_cp.extend import CPExtend
from sglang_cp.layout import TokenLayout
from sglang_cp.rows import ProcessGroupRows
from sglang_cp.weights.absorbed import absorbed_of_all_heads

SIZE, LENS, HIDDEN = 4, [1, 0, 300, 2, 70], 8
GPU = torch.device("cuda", 0)


class _Group:
    def all_gather_into_tensor(self, output, input):
        assert output.numel() == SIZE * input.numel()

    def reduce_scatter_tensor(self, output, input):
        assert SIZE * output.numel() == input.numel()


class _Waits(Exception):
    pass


class NoWaiting(TorchDispatchMode):
    """Blocking copies between host and device wait for all that was issued; values asked for raise by themselves."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name in ("_to_copy", "copy_"):
            source = args[1] if name == "copy_" else args[0]
            blocking = not (args[2] if name == "copy_" and len(args) > 2 else kwargs.get("non_blocking", False))
            if blocking and source.device.type != result.device.type:
                raise _Waits(f"{name} from {source.device} to {result.device}")
        return result


@pytest.fixture
def on_gpu():
    with FakeTensorMode(), NoWaiting():
        yield lambda *shape, dtype=torch.bfloat16: torch.empty(*shape, dtype=dtype, device=GPU)


def test_the_check_sees_what_waits(on_gpu):
    with pytest.raises(_Waits):
        torch.tensor([1, 2], device=GPU)
    with pytest.raises(_Waits):
        on_gpu(3).cpu()
    with pytest.raises(DataDependentOutputException):
        on_gpu(3)[0].item()


@pytest.mark.parametrize("rank", range(SIZE))
def test_an_extend_waits_for_nothing(on_gpu, rank):
    num_rows = sum(LENS)
    layout = TokenLayout(num_rows, SIZE, rank)
    extend = CPExtend(layout, ProcessGroupRows(_Group(), SIZE), placement=None)
    lens = on_gpu(len(LENS), dtype=torch.int32)

    hidden = extend.shard_rows(on_gpu(num_rows, HIDDEN))
    extend.shard_rows(on_gpu(num_rows, dtype=torch.int64))
    extend.pad_rows(extend.own_rows(on_gpu(num_rows, dtype=torch.int32)))
    _, counts, _, indices = extend.split_requests(LENS, like=lens)
    assert counts.device == indices.device == GPU
    lens[indices], on_gpu(len(LENS), 64, dtype=torch.int32)[indices, :32]  # as SGLang's backend uses them

    assert extend.gather_rows(hidden).shape == (num_rows, HIDDEN)
    gathered, _ = extend.gather_for_mlp(hidden, hidden, lambda *both: both)
    assert extend.reduce_from_mlp(gathered).shape == hidden.shape
    assert extend.gather_rows_at(hidden, lens.cumsum(0) - 1).shape == (len(LENS), HIDDEN)


def test_absorbed_weights_wait_for_nothing(on_gpu):
    heads = {"w_kc": on_gpu(SIZE, 2, 4, 6), "w_vc": on_gpu(SIZE, 2, 6, 5), "w_scale": on_gpu(SIZE, dtype=torch.float32)}
    assert absorbed_of_all_heads(heads)["w_kc"].shape == (SIZE * 2, 4, 6)
