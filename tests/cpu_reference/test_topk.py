import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_cp.cpu_reference.kernels import topk as kernels


def naive(score: torch.Tensor, start: int, length: int, topk: int) -> list[int]:
    """The definition: best scores, lowest column of equals, in ascending order."""
    columns = range(start, start + length)
    best = sorted(columns, key=lambda column: (-float(score[column]), column))[:topk]
    return [column - start for column in sorted(best)]


@st.composite
def rows(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Scores of few distinct values (ties are the rule), row starts and lengths, topk."""
    columns = draw(st.integers(1, 20))
    spans = draw(
        st.lists(
            st.integers(0, columns).flatmap(
                lambda start: st.integers(0, columns - start).map(lambda length: (start, length))
            ),
            max_size=6,
        )
    )
    values = draw(st.lists(st.integers(-2, 2), min_size=columns * len(spans), max_size=columns * len(spans)))
    score = torch.tensor(values, dtype=torch.float32).reshape(len(spans), columns)
    starts = torch.tensor([start for start, _ in spans], dtype=torch.int32)
    lengths = torch.tensor([length for _, length in spans], dtype=torch.int32)
    return score, starts, lengths, draw(st.integers(1, 25))


@given(rows())
def test_selection_is_the_definition(case: tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]) -> None:
    score, starts, lengths, topk = case
    chosen = kernels.fast_topk_v2(score, lengths, topk, row_starts=starts)
    assert chosen.dtype == torch.int32
    assert chosen.shape == (len(score), topk)
    for row, start, length, got in zip(score, starts.tolist(), lengths.tolist(), chosen.tolist(), strict=True):
        expected = naive(row, start, length, topk)
        assert got == expected + [-1] * (topk - len(expected))


@given(rows())
def test_a_row_does_not_depend_on_the_others(
    case: tuple[torch.Tensor, torch.Tensor, torch.Tensor, int],
) -> None:
    score, starts, lengths, topk = case
    together = kernels.select(score, starts, lengths, topk)
    for i in range(len(score)):
        assert torch.equal(
            together[i : i + 1], kernels.select(score[i : i + 1], starts[i : i + 1], lengths[i : i + 1], topk)
        )


def test_scores_outside_a_row_are_never_chosen() -> None:
    score = torch.tensor([[9.0, float("nan"), 1.0, 2.0, float("inf")]])
    assert kernels.select(score, torch.tensor([2]), torch.tensor([2]), 4).tolist() == [[0, 1, -1, -1]]
    assert kernels.select(score, torch.tensor([2]), torch.tensor([2]), 1).tolist() == [[1]]


def test_a_row_of_minus_infinity_still_offers_its_own_columns_only() -> None:
    score = torch.full((1, 6), float("-inf"))
    assert kernels.select(score, torch.tensor([3]), torch.tensor([3]), 2).tolist() == [[0, 1]]


def test_fused_paged_look_up_knows_whose_row_it_is() -> None:
    page_table = torch.tensor([[10, 11, 12], [20, 21, 22]], dtype=torch.int32)
    score = torch.tensor([[1.0, 2.0, 3.0], [3.0, 1.0, 2.0], [1.0, 3.0, 2.0]])
    slots = kernels.fast_topk_transform_fused(
        score, torch.tensor([3, 3, 3]), page_table, torch.tensor([0, 1, 3], dtype=torch.int32), 2
    )
    assert slots.tolist() == [[11, 12], [20, 22], [21, 22]]


def test_fused_paged_look_up_skips_a_request_without_rows() -> None:
    page_table = torch.tensor([[10, 11], [20, 21], [30, 31]], dtype=torch.int32)
    slots = kernels.fast_topk_transform_fused(
        torch.zeros(2, 2), torch.tensor([1, 2]), page_table, torch.tensor([0, 1, 1, 2], dtype=torch.int32), 3
    )
    assert slots.tolist() == [[10, -1, -1], [30, 31, -1]]


def test_fused_ragged_look_up_adds_the_offset() -> None:
    slots = kernels.fast_topk_transform_ragged_fused(
        torch.tensor([[1.0, 2.0], [2.0, 1.0]]), torch.tensor([2, 1]), torch.tensor([5, 7]), 2
    )
    assert slots.tolist() == [[5, 6], [7, -1]]


def test_page_look_up_of_the_second_generation() -> None:
    lengths = torch.tensor([70, 2, 0], dtype=torch.int32)
    plan = kernels.plan_topk_v2(lengths)
    assert plan.shape[0] == 4  # upstream asserts rows + 1
    score = torch.zeros(3, 128)
    score[0, 69], score[0, 3] = 2.0, 1.0
    out = torch.empty(3, 2, dtype=torch.int32)
    pages = torch.tensor([[7, 2], [5, 0], [0, 0]], dtype=torch.int32)
    raw = torch.empty_like(out)
    kernels.topk_transform_512_v2(score, lengths, pages, out, 64, plan, raw)
    assert out.tolist() == [[7 * 64 + 3, 2 * 64 + 5], [5 * 64, 5 * 64 + 1], [-1, -1]]
    assert raw.tolist() == [[3, 69], [0, 1], [-1, -1]]
