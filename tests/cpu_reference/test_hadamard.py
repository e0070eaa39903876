import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_cp.cpu_reference.kernels.hadamard import hadamard_transform


def sylvester(n: int) -> torch.Tensor:
    """Element (i, j) is -1 to the number of bits that i and j share."""
    return torch.tensor([[(-1.0) ** (i & j).bit_count() for j in range(n)] for i in range(n)], dtype=torch.float64)


@given(log_n=st.integers(0, 7), rows=st.integers(0, 4), seed=st.integers(0, 2**16))
def test_it_is_a_product_with_the_sylvester_matrix(log_n: int, rows: int, seed: int) -> None:
    n = 2**log_n
    x = torch.randn(rows, 2, n, generator=torch.Generator().manual_seed(seed))
    expected = x.double() @ sylvester(n) * n**-0.5
    torch.testing.assert_close(hadamard_transform(x, n**-0.5).double(), expected, atol=1e-5, rtol=1e-5)


def test_it_keeps_the_dtype_and_dot_products() -> None:
    x, y = torch.randn(2, 128).unbind()
    rotated = hadamard_transform(torch.stack([x, y]), 128**-0.5)
    torch.testing.assert_close(rotated[0] @ rotated[1], x @ y, atol=1e-4, rtol=1e-4)
    assert hadamard_transform(x.bfloat16(), 1.0).dtype == torch.bfloat16


def test_a_row_is_the_same_to_the_bit_in_any_batch() -> None:
    x = torch.randn(50, 128)
    assert torch.equal(hadamard_transform(x)[7:8], hadamard_transform(x[7:8]))


def test_other_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="power of two"):
        hadamard_transform(torch.randn(1, 96))
