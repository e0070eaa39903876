"""A synthetic extend takes what it needs of the pools and gives everything back, whatever happens."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from sglang_cp.calibration import synthetic
from sglang_cp.calibration.synthetic import NoRoomError, extend_batch
from sglang_cp.cost.shape import ExtendShape

PAGE = 64


class Allocator:
    page_size = PAGE

    def __init__(self, pages):
        self.free_pages = list(range(1, pages + 1))

    def alloc(self, tokens):
        assert tokens % PAGE == 0
        if tokens // PAGE > len(self.free_pages):
            return None
        pages = [self.free_pages.pop(0) for _ in range(tokens // PAGE)]
        return torch.cat([torch.arange(0), *(torch.arange(PAGE) + page * PAGE for page in pages)])

    def free(self, slots):
        pages = torch.unique(slots // PAGE).tolist()
        assert not set(pages) & set(self.free_pages)
        self.free_pages += pages


class Batch:
    """Upstream's ScheduleBatch as far as it is used: fills up the prefix's last page, then takes new ones."""

    device = "cpu"

    @classmethod
    def init_new(cls, **fields):
        batch = cls()
        batch.__dict__.update(fields)
        return batch

    def prepare_for_extend(self):
        for request in self.reqs:
            request.req_pool_idx = self.req_to_token_pool.free_slots.pop(0)
        taken = []
        for request in self.reqs:
            prefix, new = len(request.prefix_indices), request.extend_range.length
            start = int(request.prefix_indices[-1]) + 1 if prefix else 0
            in_page = min(new, -prefix % PAGE)
            taken.append(torch.arange(start, start + in_page))
            slots = self.token_to_kv_pool_allocator.alloc(-(-(new - in_page) // PAGE) * PAGE)
            if slots is None:
                raise RuntimeError("out of memory")
            taken.append(slots[: new - in_page])
        self.out_cache_loc = torch.cat(taken)
        self.prefill_input_ids_cpu = torch.tensor(
            [token for r in self.reqs for token in r.get_fill_ids()[len(r.prefix_indices) :]]
        )


class RequestPool:
    def __init__(self):
        self.free_slots = [1, 2, 3]

    def free(self, request):
        self.free_slots.append(request.req_pool_idx)
        request.req_pool_idx = None


@pytest.fixture
def scheduler(monkeypatch):
    monkeypatch.setattr(synthetic, "ScheduleBatch", Batch)
    return SimpleNamespace(
        req_to_token_pool=RequestPool(),
        token_to_kv_pool_allocator=Allocator(pages=10),
        tree_cache=SimpleNamespace(is_chunk_cache=lambda: True),
        model_config=SimpleNamespace(vocab_size=500),
        spec_algorithm=SpeculativeAlgorithm.NONE,
    )


def free(scheduler):
    return sorted(scheduler.token_to_kv_pool_allocator.free_pages), sorted(scheduler.req_to_token_pool.free_slots)


@pytest.mark.parametrize(
    "shape",
    [
        ExtendShape.of([5]),
        ExtendShape.of([64], [128]),
        ExtendShape.of([100], [70]),  # the extend fills up the prefix's last page
        ExtendShape.of([3, 90], [65, 0]),
    ],
)
def test_the_batch_has_the_shape_and_everything_is_free_again(scheduler, shape):
    before = free(scheduler)
    with extend_batch(scheduler, shape) as batch:
        assert len(batch.input_ids) == len(batch.out_cache_loc) == shape.rows
        assert [len(request.prefix_indices) for request in batch.reqs] == list(shape.prefix_lens)
        assert [request.extend_range.length for request in batch.reqs] == list(shape.extend_lens)
        assert free(scheduler) != before
    assert free(scheduler) == before


def test_a_failing_forward_leaves_nothing_taken(scheduler):
    before = free(scheduler)
    with pytest.raises(ZeroDivisionError), extend_batch(scheduler, ExtendShape.of([100], [70])):
        raise ZeroDivisionError
    assert free(scheduler) == before


@pytest.mark.parametrize(
    ("shape", "error"),
    [
        (ExtendShape.of([8], [700]), NoRoomError),  # no room for the prefix
        (ExtendShape.of([8, 8], [300, 600]), NoRoomError),  # nor for the second one
        (ExtendShape.of([300], [600]), RuntimeError),  # upstream's, with the prefix and a request slot taken
    ],
)
def test_a_full_pool_leaves_nothing_taken(scheduler, shape, error):
    before = free(scheduler)
    with pytest.raises(error), extend_batch(scheduler, shape):
        pass
    assert free(scheduler) == before


def test_tokens_are_equal_on_all_ranks_and_of_many_kinds(scheduler):
    tokens = []
    for _ in range(2):
        with extend_batch(scheduler, ExtendShape.of([200])) as batch:
            tokens.append(batch.input_ids.tolist())
    assert tokens[0] == tokens[1]
    assert len(set(tokens[0])) > 100
    assert max(tokens[0]) < 500


@pytest.mark.parametrize("algorithm", SpeculativeAlgorithm)
def test_a_target_model_keeps_the_hidden_states_that_its_draft_model_reads(scheduler, monkeypatch, algorithm):
    """As upstream's draft workers have it, at each run: making a ForwardBatch takes the mode off the batch."""
    scheduler.spec_algorithm = algorithm
    scheduler.tp_worker = SimpleNamespace(model_runner=SimpleNamespace(forward=lambda mode: ran.append(mode)))
    ran = []

    def init_new(batch, model_runner):
        mode, batch.capture_hidden_mode = batch.capture_hidden_mode, None
        return mode

    monkeypatch.setattr(synthetic.ForwardBatch, "init_new", init_new)
    with extend_batch(scheduler, ExtendShape.of([5])) as batch:
        synthetic.forward(scheduler, batch)
        synthetic.forward(scheduler, batch)
    keeps_none = {"NONE", "STANDALONE", "NGRAM"}
    assert ran == [CaptureHiddenMode.NULL if algorithm.name in keeps_none else CaptureHiddenMode.FULL] * 2
