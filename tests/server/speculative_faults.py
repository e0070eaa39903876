"""A plugin for SGLang that plants one fault at a time into what the draft model is given after an extend.

Greedy tokens do not show such a fault, for every draft is verified: which drafts were right must. See
test_speculative.py. The file may also name PLAIN_TP, which is no fault: no extend is dealt out.
"""

import os
from pathlib import Path

import torch

FILE = "PLANTED_DRAFT_FAULT_FILE"
PLAIN_TP = "plain TP"


def planted() -> str:
    path = Path(os.environ[FILE])
    return path.read_text() if path.exists() else ""


def rank_order(hidden_states, rank, size):
    return torch.cat([hidden_states[first::size] for first in range(size)])


def local_rows_only(hidden_states, rank, size):
    mine = torch.arange(len(hidden_states)) % size == rank
    return torch.where(mine.unsqueeze(1), hidden_states, 0)


def one_row_late(hidden_states, rank, size):
    return hidden_states.roll(1, dims=0)


HIDDEN_STATES = {
    "hidden states in dealt-out order": rank_order,
    "hidden states of local rows only": local_rows_only,
    "hidden states one row late": one_row_late,
}
CHUNK_TAIL = "a chunk's last draft input is the sampled token, not the prompt's next"
SEEDS = "the first draft steps reuse another row's top-k"
FAULTS = (*HIDDEN_STATES, CHUNK_TAIL, SEEDS)


def draft_prefill(extend, worker, batch, hidden_states, next_token_ids, *rest):
    from sglang.srt.runtime_context import get_parallel

    fault = planted()
    if fault in HIDDEN_STATES:
        parallel = get_parallel()
        hidden_states = HIDDEN_STATES[fault](hidden_states, parallel.tp_rank, parallel.tp_size)
    draft_input = extend(worker, batch, hidden_states, next_token_ids, *rest)
    if fault == SEEDS:
        seeds = draft_input.dsa_topk_indices
        draft_input.dsa_topk_indices = torch.where(seeds < 0, seeds, seeds[:, :1])
    return draft_input


def chunk_tail(result, batch, next_token_ids):
    return next_token_ids.to(result.dtype) if planted() == CHUNK_TAIL else result


def plain_tp(result, policy, extend_lens, prefix_lens):
    return type(result)(False, "planted") if planted() == PLAIN_TP else result


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    worker = "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker."
    HookRegistry.register(worker + "_draft_extend_for_prefill", draft_prefill, HookType.AROUND)
    tail = "sglang.srt.speculative.eagle_utils._eagle_prefill_tail_tokens"
    HookRegistry.register(tail, chunk_tail, HookType.AFTER)
    HookRegistry.register("sglang_cp.decision.Threshold.decide", plain_tp, HookType.AFTER)
