"""One extend of given lengths on a scheduler that has nothing else to do: upstream's own batch, without requests.

What cached tokens hold does not matter for the time that an extend takes, so a prefix is only allocated.

With speculative decoding it is the target model's extend, as the draft worker has it: hidden states of all rows are
kept for the draft. What follows in serving, the draft's own extend of the same rows, is plain TP whatever was chosen
for the target, and takes the same time after either: it adds to both sides of the comparison, so it is not measured.
The same holds for a prefill server that hands its KV on.
"""

from __future__ import annotations

import contextlib
import random
from array import array
from collections.abc import Iterator
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.mem_cache.common import evict_from_tree_cache
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch
from sglang.srt.sampling.sampling_params import SamplingParams

from sglang_cp.cost.shape import ExtendShape
from sglang_cp.errors import SglangCpError


class NoRoomError(SglangCpError):
    """The KV pool has no room for a synthetic extend."""


@contextlib.contextmanager
def extend_batch(scheduler: Any, shape: ExtendShape) -> Iterator[ScheduleBatch]:
    """A prepared extend batch of ``shape``; its request slots and KV slots are free again afterwards.

    Args:
        scheduler: upstream's, idle.
        shape: lengths that context and pool can hold.

    Raises:
        NoRoomError: running requests hold the pool.
    """
    requests = [_request(scheduler, *lengths) for lengths in zip(shape.extend_lens, shape.prefix_lens, strict=True)]
    batch = ScheduleBatch.init_new(
        reqs=requests,
        req_to_token_pool=scheduler.req_to_token_pool,
        token_to_kv_pool_allocator=scheduler.token_to_kv_pool_allocator,
        tree_cache=scheduler.tree_cache,
        model_config=scheduler.model_config,
        enable_overlap=False,
        spec_algorithm=scheduler.spec_algorithm,
    )
    taken: list[torch.Tensor] = []
    try:
        for request, prefix_len in zip(requests, shape.prefix_lens, strict=True):
            if prefix_len:
                slots = _allocate(scheduler, prefix_len)
                taken.append(slots)
                request.prefix_indices = slots[:prefix_len]
        batch.prepare_for_extend()
        taken.append(batch.out_cache_loc)
        batch.input_ids = batch.prefill_input_ids_cpu.to(batch.device)
        batch.prefill_input_ids_cpu = None
        yield batch
    finally:
        if taken:
            # In one call: an extend may fill up the page in which its prefix ends.
            scheduler.token_to_kv_pool_allocator.free(torch.cat(taken))
        for request in requests:
            if request.req_pool_idx is not None:
                scheduler.req_to_token_pool.free(request)


def forward(scheduler: Any, batch: ScheduleBatch) -> None:
    """Run the model on ``batch``, as often as called; whatever it computes is dropped."""
    model_runner = scheduler.tp_worker.model_runner  # the target's, also where a draft worker wraps it
    kept = keeps_hidden_states(scheduler)
    batch.capture_hidden_mode = (
        CaptureHiddenMode.FULL if kept else CaptureHiddenMode.NULL
    )  # a ForwardBatch takes it off
    model_runner.forward(ForwardBatch.init_new(batch, model_runner))


def keeps_hidden_states(scheduler: Any) -> bool:
    """Whether extends keep the hidden states of all rows, for a draft model that reads them."""
    algorithm = scheduler.spec_algorithm
    return bool(algorithm.is_eagle() or algorithm.is_dflash())


def _request(scheduler: Any, extend_len: int, prefix_len: int) -> Req:
    """The same tokens on every rank, and of many kinds: tokens of one kind would all go to the same experts."""
    draw, vocab_size = random.Random(0), scheduler.model_config.vocab_size
    tokens = array("q", (draw.randrange(vocab_size) for _ in range(prefix_len + extend_len)))
    request = Req("sglang-cp calibration", "", tokens, SamplingParams(temperature=0, max_new_tokens=1))
    request.full_untruncated_fill_ids = tokens
    request.logprob_start_len = -1
    request.set_extend_range(prefix_len, len(tokens))
    return request


def _allocate(scheduler: Any, tokens: int) -> torch.Tensor:
    """Whole pages that hold ``tokens``: [slots], int64."""
    allocator = scheduler.token_to_kv_pool_allocator
    whole_pages = -(-tokens // allocator.page_size) * allocator.page_size
    evict_from_tree_cache(scheduler.tree_cache, whole_pages)
    slots: torch.Tensor | None = allocator.alloc(whole_pages)
    if slots is None:
        raise NoRoomError(f"The KV pool has no room for {tokens:,} tokens: try again when fewer requests run.")
    return slots
