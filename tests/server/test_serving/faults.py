"""A plugin for SGLang that plants one fault at a time, named in a file, into a server with CP."""

import os
from pathlib import Path

import torch

FILE = "PLANTED_SERVING_FAULT_FILE"
WRONG_ROW = "the LM head takes a neighbour's row for one request of a batch"
LOGPROBS = "input logprobs in dealt-out order"
HIDDEN_STATES = "hidden states in dealt-out order"
OLD_PLACES = "a retracted request's rows written to where they were before"

_layout = None
"""Of the CP extend whose rows were gathered last."""


def planted(name: str) -> bool:
    path = Path(os.environ[FILE])
    return path.exists() and path.read_text() == name


def note_gather(result, strategy, x, forward_batch, *_, **__):
    """After the final gather of a CP extend."""
    global _layout
    _layout = forward_batch.attn_cp_metadata.layout
    if planted(WRONG_ROW) and len(forward_batch.extend_seq_lens_cpu) > 1:
        result = result.clone()
        last = sum(forward_batch.extend_seq_lens_cpu[:2]) - 1
        result[last] = result[last - 1]
    return result


def dealt_out(rows):
    """Rows in token order as the ranks have them, one after the other, if there are as many as were gathered."""
    if _layout is None or rows is None or len(rows) != _layout.num_rows:
        return rows
    return torch.cat([rows[rank :: _layout.size] for rank in range(_layout.size)])


def reorder_logprobs(process, processor, input_logits, *args, **kwargs):
    if planted(LOGPROBS):
        input_logits = torch.cat([input_logits[0::2], input_logits[1::2]])
    return process(processor, input_logits, *args, **kwargs)


def reorder_hidden_states(result, *_, **__):
    return dealt_out(result) if planted(HIDDEN_STATES) else result


def remember_places(*_, req, req_to_token_pool, **__):
    """Before a request is retracted."""
    req.planted_places = req_to_token_pool.req_to_token[req.req_pool_idx, : req.kv_allocated_len].clone()


def write_to_old_places(_, batch, *__, **___):
    """After an extend was given its places in the pool."""
    start = 0
    for req, length, prefix in zip(batch.reqs, batch.extend_lens, batch.prefix_lens, strict=True):
        old = getattr(req, "planted_places", None)
        if old is not None and planted(OLD_PLACES):
            known = old[prefix : prefix + length]
            batch.out_cache_loc[start : start + len(known)] = known
        start += length


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    processor = "sglang.srt.layers.logits_processor.LogitsProcessor."
    batch = "sglang.srt.managers.schedule_batch."
    for target, hook, kind in (
        ("sglang_cp.strategy.PerBatchInterleaveStrategy.gather_hidden_states", note_gather, HookType.AFTER),
        (processor + "process_input_logprobs", reorder_logprobs, HookType.AROUND),
        (processor + "_get_hidden_states_to_store", reorder_hidden_states, HookType.AFTER),
        (batch + "release_req", remember_places, HookType.BEFORE),
        (batch + "ScheduleBatch.prepare_for_extend", write_to_old_places, HookType.AFTER),
    ):
        HookRegistry.register(target, hook, kind)
