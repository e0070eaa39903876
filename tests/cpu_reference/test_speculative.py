"""Twins of the speculative kernels against trees walked by hand."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_cp.cpu_reference.kernels import speculative
from sglang_cp.cpu_reference.kernels.launch import Launch

seeds = st.integers(0, 2**31)


class Tree:
    """A random tree as upstream's draft loop makes one: `steps` steps of `topk` beams, `n - 1` candidates chosen.

    Candidates are numbered as upstream lists them: topk of the first step, topk * topk of each later one.
    """

    def __init__(self, topk: int, steps: int, n: int, draw: torch.Generator) -> None:
        self.topk, self.steps, self.n = topk, steps, n
        self.parent_list = [-1, *range(topk)]  # the beams of the first step, as `_select_top_k_tokens_first` has them
        self.parent_of = dict.fromkeys(range(topk), -1)
        start = topk
        beams = list(range(topk))
        for step in range(1, steps):
            offered = range(start, start + topk * topk)
            self.parent_of.update({candidate: beams[(candidate - start) // topk] for candidate in offered})
            beams = [start + int(i) for i in torch.randperm(topk * topk, generator=draw)[:topk].sort().values]
            if step < steps - 1:
                self.parent_list += beams
            start += topk * topk
        chosen: list[int] = []
        while len(chosen) < n - 1:  # a candidate may be chosen when its parent is
            free = [c for c in self.parent_of if c not in chosen and self.parent_of[c] in (-1, *chosen)]
            chosen.append(free[int(torch.randint(len(free), (), generator=draw))])
        self.selected = sorted(chosen)

    def parent(self, node: int) -> int:
        """Parent node of node i > 0."""
        above = self.parent_of[self.selected[node - 1]]
        return 0 if above == -1 else self.selected.index(above) + 1

    def path(self, node: int) -> list[int]:
        return [node] if node == 0 else [*self.path(self.parent(node)), node]


@st.composite
def forests(draw: st.DrawFn) -> tuple[list[Tree], torch.Tensor]:
    generator = torch.Generator().manual_seed(draw(seeds))
    topk, steps = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    n = 1 + draw(st.integers(1, steps if topk == 1 else topk + steps - 1))
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    return [Tree(topk, steps, n, generator) for _ in lengths], torch.tensor(lengths)


def build(trees: list[Tree], lengths: torch.Tensor, mode: int) -> dict[str, torch.Tensor]:
    batch, n = len(trees), trees[0].n
    size = int((n * (lengths * (mode == 0) + n)).sum())
    out = {
        "tree_mask": torch.ones(size, dtype=torch.bool),
        "positions": torch.empty(batch * n, dtype=torch.long),
        **{f"retrieve_{name}": torch.full((batch, n), -1) for name in ("index", "next_token", "next_sibling")},
    }
    speculative.build_tree_kernel_efficient(
        torch.tensor([tree.parent_list for tree in trees]),
        torch.tensor([tree.selected for tree in trees]),
        lengths,
        *out.values(),
        trees[0].topk,
        trees[0].steps,
        n,
        mode,
    )
    return out


@settings(max_examples=60, deadline=None)
@given(forests(), st.sampled_from([0, 1]))
def test_nodes_attend_to_the_prefix_and_their_ancestors(forest: tuple[list[Tree], torch.Tensor], mode: int) -> None:
    trees, lengths = forest
    out = build(trees, lengths, mode)
    mask, positions = [], []
    for tree, length in zip(trees, lengths.tolist(), strict=True):
        for node in range(tree.n):
            path = tree.path(node)
            positions.append(length + len(path) - 1)
            mask += [True] * (length if mode == 0 else 0) + [other in path for other in range(tree.n)]
    assert out["tree_mask"].tolist() == mask
    assert out["positions"].tolist() == positions


@settings(max_examples=60, deadline=None)
@given(forests())
def test_children_are_linked_the_likeliest_first(forest: tuple[list[Tree], torch.Tensor]) -> None:
    trees, lengths = forest
    out = build(trees, lengths, 0)
    for request, tree in enumerate(trees):
        for node in range(tree.n):
            child, linked = int(out["retrieve_next_token"][request, node]), []
            while child != -1:
                linked.append(child)
                child = int(out["retrieve_next_sibling"][request, child])
            assert linked == [other for other in range(1, tree.n) if tree.parent(other) == node]
            assert out["retrieve_index"][request, node] == request * tree.n + node


@settings(max_examples=60, deadline=None)
@given(forests(), seeds)
def test_greedy_verification_walks_to_the_deepest_right_draft(
    forest: tuple[list[Tree], torch.Tensor], seed: int
) -> None:
    trees, lengths = forest
    out, n, batch = build(trees, lengths, 0), trees[0].n, len(trees)
    draw = torch.Generator().manual_seed(seed)
    candidates, target = (torch.randint(3, (batch, n), generator=draw) for _ in range(2))
    predicts = torch.zeros(batch * n, dtype=torch.int32)
    depth = trees[0].steps + 1
    accept_index = torch.full((batch, depth), -1, dtype=torch.int32)
    right = torch.empty(batch, dtype=torch.int32)
    links = [out[f"retrieve_{name}"] for name in ("index", "next_token", "next_sibling")]
    speculative.verify_tree_greedy(predicts, accept_index, right, candidates, *links, target)
    for request, tree in enumerate(trees):
        path = [0]
        while True:
            wanted = target[request, path[-1]]
            children = [i for i in range(1, n) if tree.parent(i) == path[-1] and candidates[request, i] == wanted]
            if not children:
                break
            path.append(children[0])
        rows = [request * n + node for node in path]
        assert accept_index[request].tolist() == rows + [-1] * (depth - len(rows))
        assert right[request] == len(path) - 1
        assert predicts[rows].tolist() == target[request, path].tolist()


spans = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), min_size=1, max_size=4)


@given(spans, seeds)
def test_slots_are_written_and_read_back_request_after_request(lengths: list[tuple[int, int]], seed: int) -> None:
    rows = torch.randperm(6, generator=torch.Generator().manual_seed(seed))[: len(lengths)]
    start = torch.tensor([start for start, _ in lengths], dtype=torch.int32)
    end = start + torch.tensor([count for _, count in lengths], dtype=torch.int32)
    slots = torch.arange(100, 100 + int((end - start).sum()))
    table = torch.full((6, 10), -1, dtype=torch.int32)
    expected, taken = table.clone(), iter(slots.tolist())
    for row, first, last in zip(rows.tolist(), start.tolist(), end.tolist(), strict=True):
        for column in range(first, last):
            expected[row, column] = next(taken)
    Launch(speculative.assign_req_to_token_pool)[(1,)](rows, table, start, end, slots, 10, 4)
    assert table.equal(expected)
    read = torch.full_like(slots, -1)
    Launch(speculative.assign_extend_cache_locs)[(1,)](rows, table, start, end, read, 10, 4)
    assert read.equal(slots)


def test_draft_slots_are_those_after_the_sequence() -> None:
    table = torch.arange(40).view(4, 10)
    out = torch.empty(6, dtype=torch.long)
    Launch(speculative.assign_draft_cache_locs_contiguous)[(2,)](
        torch.tensor([3, 1]), table, torch.tensor([2, 5]), out, 10, 1, 3
    )
    assert out.tolist() == [32, 33, 34, 15, 16, 17]


def test_rows_between_steps() -> None:
    bonus = torch.empty(2, dtype=torch.int32)
    accepted = torch.tensor([[5, 6, 7], [8, 9, 10]], dtype=torch.int32)
    Launch(speculative.fill_bonus_tokens)[(2,)](accepted, torch.tensor([1, 3], dtype=torch.int32), bonus, 3)
    assert bonus.tolist() == [5, 10]
    buffers = [torch.randn(4, 2), torch.arange(8).view(4, 2), torch.arange(4), torch.randn(4, 5)]
    gathered = speculative.gather_spec_extras(torch.tensor([2, 0, 2]), *buffers)
    assert all(g is not None and g.equal(b[[2, 0, 2]]) for g, b in zip(gathered, buffers, strict=True))
    assert speculative.gather_spec_extras(torch.tensor([1]), *buffers[:3], None)[3] is None


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5)), min_size=1, max_size=4))
def test_each_new_token_sees_itself_and_all_before(requests: list[tuple[int, int]]) -> None:
    extend = torch.tensor([new for new, _ in requests], dtype=torch.int32)
    total = extend + torch.tensor([prefix for _, prefix in requests], dtype=torch.int32)
    expected = [prefix + i + 1 for new, prefix in requests for i in range(new)]
    assert speculative.seqlens_expand(extend, total, len(expected), 4).tolist() == expected
