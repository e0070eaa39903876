"""The rows gathered for the LM head, against what SGLang's own logits processor reads of the complete rows."""

import pytest
import torch
from sglang.srt.layers.logits_processor import LogitsMetadata, LogitsProcessor
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode

from sglang_cp import logits
from sglang_cp.extend import CPExtend
from sglang_cp.layout import TokenLayout
from sglang_cp.strategy import PerBatchInterleaveStrategy
from tests.simulated import rows_of

HIDDEN = 6
BATCHES = {
    "one request": [11],
    "shorter than the ranks": [1, 9, 2, 1],
    "one with a last row on each rank": [4, 5, 5, 5],
    "an empty one between two": [6, 0, 5],
    "an empty one at the start": [0, 7],
}


def batch(extend_lens, **changes):
    fields = {
        "forward_mode": ForwardMode.EXTEND,
        "batch_size": len(extend_lens),
        "input_ids": torch.zeros(sum(extend_lens), dtype=torch.int64),
        "req_pool_indices": None,
        "seq_lens": torch.tensor(extend_lens),
        "out_cache_loc": None,
        "seq_lens_sum": sum(extend_lens),
        "extend_seq_lens": torch.tensor(extend_lens, dtype=torch.int32),
        "extend_seq_lens_cpu": extend_lens,
        "extend_logprob_start_lens_cpu": extend_lens,
        "capture_hidden_mode": CaptureHiddenMode.NULL,
    }
    return ForwardBatch(**{**fields, **changes})


def asks_logprobs(*start_lens):
    """Logprobs of a prompt from a place on; what the scheduler sets besides."""
    ask = {"return_logprob": True, "extend_logprob_start_lens_cpu": list(start_lens)}
    return {**ask, "top_logprobs_nums": [0] * len(start_lens), "token_ids_logprobs": [None] * len(start_lens)}


def gathered(local, rows, forward_batch, layout):
    """Through the strategy, as SGLang's runner calls it."""
    forward_batch.attn_cp_metadata = CPExtend(layout, rows, placement=None)
    return PerBatchInterleaveStrategy.gather_hidden_states(None, local, forward_batch)


def from_all_ranks(complete, forward_batch, size):
    """What every rank gets of the complete rows."""
    layouts = [TokenLayout(len(complete), size, rank) for rank in range(size)]
    local = [layout.pad(layout.own(complete)) for layout in layouts]
    for layout, rows in zip(layouts, local, strict=True):
        rows[layout.local_rows :] = 1e30  # padding must reach nobody
    places = logits.places(forward_batch)
    sent = local if places is None else [layout.near(rows, places) for layout, rows in zip(layouts, local, strict=True)]
    return [gathered(local[rank], rows_of(rank, sent), forward_batch, layouts[rank]) for rank in range(size)]


def read(hidden, what):
    """The rows that SGLang's processor makes logits of, and those that it hands out."""
    processor = LogitsProcessor.__new__(LogitsProcessor)
    if isinstance(what, ForwardBatch):
        what = LogitsMetadata.from_forward_batch(what)
    pruned, _, _, sample_indices, *_ = processor._get_pruned_states(hidden, None, None, what)
    stored = processor._get_hidden_states_to_store(hidden, None, None, pruned, None, None, sample_indices, what)
    return pruned, stored


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("extend_lens", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("mode", [ForwardMode.EXTEND, ForwardMode.MIXED])
def test_the_processor_reads_the_same_rows_as_of_all_rows(extend_lens, mode, size):
    complete = torch.randn(sum(extend_lens), HIDDEN, generator=torch.Generator().manual_seed(0))
    for capture in (CaptureHiddenMode.NULL, CaptureHiddenMode.LAST):
        forward_batch = batch(extend_lens, forward_mode=mode, capture_hidden_mode=capture)
        pruned, stored = read(complete, forward_batch)
        for hidden in from_all_ranks(complete, forward_batch, size):
            assert hidden.shape == (len(extend_lens), HIDDEN)
            ours, our_stored = read(hidden, logits.metadata(forward_batch))
            assert torch.equal(ours, pruned)
            assert (our_stored is None) == (stored is None)
            assert stored is None or torch.equal(our_stored, stored)


ALL_ROWS = {
    "logprobs of a prompt": asks_logprobs(5, 0),
    "hidden states of a prompt": {"capture_hidden_mode": CaptureHiddenMode.FULL},
    "rows padded by request": {"padded_static_len": 6},
    "several items in a prompt": {"multi_item_delimiter_indices": [torch.tensor([1])]},
}


@pytest.mark.parametrize("asked", ALL_ROWS.values(), ids=ALL_ROWS)
def test_all_rows_are_gathered_where_they_are_asked_for(asked):
    forward_batch = batch([5, 6], **asked)
    complete = torch.randn(11, HIDDEN)
    for hidden in from_all_ranks(complete, forward_batch, 4):
        assert torch.equal(hidden, complete)
    assert logits.metadata(forward_batch) is forward_batch


def test_logprobs_of_the_answer_need_no_more_than_the_last_rows():
    forward_batch = batch([5, 6], **asks_logprobs(5, 6))
    assert logits.places(forward_batch).tolist() == [4, 10]
