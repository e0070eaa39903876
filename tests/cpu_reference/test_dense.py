"""Dense products: summed in float64, rounded once; a rank's part of a sum is not rounded at all."""

from types import SimpleNamespace

import pytest
import torch

from sglang_cp.cpu_reference.kernels import dense


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_product_is_the_exact_one_rounded_once(dtype: torch.dtype) -> None:
    x, w, bias = (torch.randn(*shape).to(dtype) for shape in ((7, 300), (50, 300), (50,)))
    expected = (x.double() @ w.double().T + bias.double()).to(dtype)
    assert torch.equal(dense.linear(x, w, bias), expected)
    a, b = torch.randn(3, 4, 200).to(dtype), torch.randn(3, 200, 5).to(dtype)
    assert torch.equal(dense.bmm(a, b), (a.double() @ b.double()).to(dtype))
    assert torch.equal(dense.matmul(x, w.T), (x.double() @ w.double().T).to(dtype))
    out = torch.empty(3, 4, 5, dtype=dtype)
    assert dense.bmm(a, b, out=out) is out
    assert torch.equal(out, dense.bmm(a, b))


def test_a_row_is_the_same_to_the_bit_in_any_batch() -> None:
    x, w = torch.randn(101, 512), torch.randn(64, 512)
    together = dense.linear(x, w)
    for rows in (slice(0, 1), slice(1, None, 2), slice(3, 70)):
        assert torch.equal(dense.linear(x[rows], w), together[rows])


def test_a_row_parallel_sum_does_not_depend_on_the_number_of_ranks() -> None:
    x, w = torch.randn(9, 512).bfloat16(), torch.randn(64, 512).bfloat16()

    def fail(*_: object) -> torch.Tensor:
        raise AssertionError("a row-parallel layer must not be rounded")

    def part(ranks: int, rank: int) -> torch.Tensor:
        columns = slice(rank * 512 // ranks, (rank + 1) * 512 // ranks)
        layer = SimpleNamespace(weight=w[:, columns], input_is_parallel=True)
        return dense.apply_linear(fail, None, layer, x[:, columns])

    norm = SimpleNamespace(weight=torch.ones(64).bfloat16())
    sums = [dense.rms_norm(lambda _, y: y, norm, sum(part(n, rank) for rank in range(n))) for n in (1, 2, 4)]
    assert sums[0].dtype == torch.bfloat16
    assert all(torch.equal(total, sums[0]) for total in sums)


def test_other_layers_go_through_upstreams_own_method() -> None:
    layer, x = SimpleNamespace(weight=None), torch.randn(2, 3)
    assert dense.apply_linear(lambda method, given, y, bias: y + 1, None, layer, x) is not x


def test_routed_experts_are_the_definition() -> None:
    torch.manual_seed(0)
    x, w13, w2 = torch.randn(6, 16), torch.randn(4, 2 * 8, 16), torch.randn(4, 16, 8)
    weights, experts = torch.rand(6, 2), torch.stack([torch.randperm(4)[:2] for _ in range(6)])
    layer = SimpleNamespace(w13_weight=w13, w2_weight=w2)
    routed = SimpleNamespace(topk_weights=weights, topk_ids=experts.int())
    expected = torch.zeros(6, 16, dtype=torch.float64)
    for row in range(6):
        for slot in range(2):
            expert = experts[row, slot]
            hidden = w13[expert].double() @ x[row].double()
            activated = torch.nn.functional.silu(hidden[:8]) * hidden[8:]
            expected[row] += weights[row, slot] * (w2[expert].double() @ activated)
    got = dense.fused_moe(layer, x, routed, None)
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, expected)
