import pytest
import torch

from sglang_cp.cpu_reference.kernels import activations

X = torch.randn(1003, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("ours", "torchs"), [(activations.sigmoid, torch.sigmoid), (activations.silu, torch.nn.functional.silu)]
)
def test_a_row_is_the_same_to_the_bit_in_any_batch(ours, torchs):
    whole = ours(X)
    torch.testing.assert_close(whole, torchs(X))
    assert all(torch.equal(ours(X[row]), whole[row]) for row in range(len(X)))
    assert torch.equal(ours(X.T)[3], whole[:, 3])
    assert not all(torch.equal(torchs(X[row]), torchs(X)[row]) for row in range(len(X))), "torch needs no twin any more"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_dtype_stays(dtype):
    assert activations.sigmoid(X.to(dtype)).dtype is activations.silu(X.to(dtype)).dtype is dtype


def test_results_go_where_they_are_wanted():
    x, out = X.clone(), torch.empty_like(X)
    assert activations.sigmoid(x, out=out) is out
    assert activations.silu(x, inplace=True) is x
    assert torch.equal(out, activations.sigmoid(X))
    assert torch.equal(x, activations.silu(X))
