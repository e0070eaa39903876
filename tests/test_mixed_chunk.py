"""Where a decode row of SGLang's mixed batches stands (patch 19)."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.managers.schedule_batch import ScheduleBatch

PROMPT = [1] * 100


def decoding(outputs, places):
    """A request whose token at place ``places - 1`` is computed next, of which ``outputs`` tokens are known."""
    return SimpleNamespace(
        origin_input_ids=PROMPT,
        output_ids=[2] * outputs,
        kv_committed_len=places,
        full_untruncated_fill_ids=PROMPT + [2] * outputs,
        _refresh_fill_ids=lambda: None,
        set_extend_range=lambda start, end: None,
    )


@pytest.mark.parametrize(
    ("overlap", "outputs"),
    [(False, 5), pytest.param(True, 4, id="a result behind"), pytest.param(True, 5, id="every result processed")],
)
def test_it_comes_right_after_what_is_in_the_cache(overlap, outputs):
    running = SimpleNamespace(
        reqs=[decoding(outputs, places=105)],
        batch_size=lambda: 1,
        req_pool_indices=torch.tensor([3]),
        out_cache_loc=torch.tensor([9]),
    )
    batch = SimpleNamespace(
        enable_overlap=overlap,
        out_cache_loc=torch.tensor([7, 8]),
        prefix_lens=[0],
        extend_lens=[2],
        extend_num_tokens=2,
        extend_logprob_start_lens=[0],
        merge_batch=lambda other: None,
    )
    ScheduleBatch.mix_with_running(batch, running)
    assert batch.prefix_lens == [0, 104]
    assert batch.extend_lens == [2, 1]
