"""Torch twins of the kernels around speculative decoding: drafts to a tree, verified drafts, token slots.

The tree of a request has `n` nodes: node 0 is the last token that is certain, node i > 0 the i-th draft. A draft is
named by its place in the list of all candidates, `selected_index` `[batch, n - 1]`: the first step has candidates 0 to
topk - 1; candidate c of a later step hangs on entry c // topk of `parent_list` `[batch, ...]`, which names its parent.
"""

from __future__ import annotations

import torch


def build_tree_kernel_efficient(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    verified_seq_len: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Fill in what verification needs of the trees.

    Args:
        tree_mask: flat bool; request after request `[n, seq_len + n]` (mode 0) or `[n, n]` (mode 1): which keys a node
            attends to. Its prefix part is true already.
        positions: `[batch * n]`, positions of the nodes' tokens.
        retrieve_index: `[batch, n]`, rows of the nodes in the flattened batch.
        retrieve_next_token: `[batch, n]`, a node's first child, or -1, which it is filled with.
        retrieve_next_sibling: `[batch, n]`, the next child of its parent, or -1, which it is filled with.

    Raises:
        NotImplementedError: for a mask in packed bits.
    """
    if tree_mask_mode not in (0, 1):
        raise NotImplementedError(f"the CPU reference platform has no tree mask mode {tree_mask_mode}")
    n, batch = draft_token_num, verified_seq_len.numel()
    retrieve_index.copy_(torch.arange(batch * n).view(batch, n))
    written = 0
    for request, seq_len in enumerate(verified_seq_len.tolist()):
        parents = _parents(selected_index[request].tolist(), parent_list[request].tolist(), topk)
        attends = torch.eye(n, dtype=torch.bool)
        for node, parent in enumerate(parents, start=1):
            attends[node] |= attends[parent]
        positions[request * n : (request + 1) * n] = seq_len + attends.sum(1) - 1
        prefix = seq_len if tree_mask_mode == 0 else 0
        mask = tree_mask[written : written + n * (prefix + n)].view(n, prefix + n)
        mask[:, prefix:] = attends
        written += mask.numel()
        for node in range(n - 1, 0, -1):  # so that a parent's first child is the likeliest one
            parent = parents[node - 1]
            retrieve_next_sibling[request, node] = retrieve_next_token[request, parent]
            retrieve_next_token[request, parent] = node


def _parents(selected: list[int], parent_list: list[int], topk: int) -> list[int]:
    """The parent node of each draft."""
    node_of = {candidate: node for node, candidate in enumerate(selected, start=1)}
    return [0 if draft < topk else node_of[parent_list[draft // topk]] for draft in selected]


def verify_tree_greedy(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Walk down each tree while a child is the token that the target predicts for its parent.

    Args:
        predicts: `[batch * n]`; at each row walked over, what the target predicts there.
        accept_index: `[batch, depth]`; the rows walked over, the rest stays as it is.
        accept_token_num: `[batch]`; how many drafts were right.
        candidates: `[batch, n]`, tokens of the nodes.
        target_predict: `[batch, n]`, the target's tokens after the nodes.
    """
    flat_predict = target_predict.flatten()
    for request in range(candidates.shape[0]):
        node = right = 0
        while True:
            row = int(retrive_index[request, node])
            accept_index[request, right] = row
            predicts[row] = flat_predict[row]
            child = int(retrive_next_token[request, node]) if right + 1 < accept_index.shape[1] else -1
            while child != -1 and candidates[request, child] != flat_predict[row]:
                child = int(retrive_next_sibling[request, child])
            if child == -1:
                break
            node, right = child, right + 1
        accept_token_num[request] = right


# Token slots.


def assign_req_to_token_pool(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    bs_upper: int,
) -> None:
    """Write slots `out_cache_loc`, request after request, into each request's row from its start to its end."""
    row, column = _spans(req_pool_indices, start_offset, end_offset)
    req_to_token[row, column] = out_cache_loc[: row.numel()].to(req_to_token.dtype)


def assign_extend_cache_locs(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    bs_upper: int,
) -> None:
    """Read each request's slots from its start to its end into `out_cache_loc`, request after request."""
    row, column = _spans(req_pool_indices, start_offset, end_offset)
    out_cache_loc[: row.numel()] = req_to_token[row, column].to(out_cache_loc.dtype)


def assign_draft_cache_locs_contiguous(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    topk: int,
    speculative_num_steps: int,
) -> None:
    """Slots of each request's next `topk * speculative_num_steps` tokens into `out_cache_loc`."""
    end = seq_lens + topk * speculative_num_steps
    assign_extend_cache_locs(req_pool_indices, req_to_token, seq_lens, end, out_cache_loc, pool_len, 0)


def _spans(req_pool_indices: torch.Tensor, start: torch.Tensor, end: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and columns of `req_to_token` from each request's start to its end, request after request."""
    lens = (end - start).long()
    row = req_pool_indices.long().repeat_interleave(lens)
    number = torch.arange(row.numel()) - (lens.cumsum(0) - lens).repeat_interleave(lens)
    return row, start.long().repeat_interleave(lens) + number


# Rows between steps.


def fill_bonus_tokens(
    accept_tokens: torch.Tensor, accept_lens: torch.Tensor, bonus_tokens: torch.Tensor, accept_stride: int
) -> None:
    """The last accepted token of each request: `accept_tokens` is `[batch, accept_stride]` or flat."""
    last = accept_lens.long().unsqueeze(1) - 1
    bonus_tokens.copy_(accept_tokens.view(-1, accept_stride).gather(1, last).squeeze(1))


def gather_spec_extras(
    indices: torch.Tensor,
    topk_p_buf: torch.Tensor,
    topk_index_buf: torch.Tensor,
    output_tokens_buf: torch.Tensor,
    hidden_states_buf: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Rows `indices` of each buffer."""
    rows = indices.long()
    hidden_states = None if hidden_states_buf is None else hidden_states_buf[rows]
    return topk_p_buf[rows], topk_index_buf[rows], output_tokens_buf[rows], hidden_states


def seqlens_expand(
    extend_seq_lens: torch.Tensor, seq_lens: torch.Tensor, total_len: int, max_q_len: int
) -> torch.Tensor:
    """Keys that each new token sees, int32 `[total_len]`: the last token of a request sees `seq_lens` of them."""
    lens = extend_seq_lens.long()
    last = lens.cumsum(0).repeat_interleave(lens) - 1
    return (seq_lens.long().repeat_interleave(lens) - (last - torch.arange(total_len))).to(torch.int32)
