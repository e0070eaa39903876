"""Torch twins of the kernels that sample from a tree of drafts (`sgl_kernel`, under its names).

Probabilities are `[rows, vocabulary]`, or `[batch, n, vocabulary]` for trees of n nodes (see `speculative`).
"""

from __future__ import annotations

import torch


def top_k_renorm_prob(probs: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """The `top_k[row]` likeliest tokens of each row, and all as likely as the last of them, made to sum to 1."""
    kth = top_k.long().clamp(1, probs.shape[1]).unsqueeze(1) - 1
    least = probs.sort(dim=1, descending=True).values.gather(1, kth)
    return _normalized(probs.where(probs >= least, 0))


def top_p_renorm_prob(probs: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The likeliest tokens of each row, as few as have `top_p[row]` together, made to sum to 1."""
    ordered, token = probs.sort(dim=1, descending=True)
    needed = ordered.cumsum(1) - ordered < top_p.unsqueeze(1)
    return _normalized(torch.zeros_like(probs).scatter(1, token, ordered.where(needed, 0)))


def tree_speculative_sampling_target_only(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Walk down each tree, to a child with the target's probability of its token; sample the last token.

    Outputs, candidates and links are those of `speculative.verify_tree_greedy`. `uniform_samples` `[batch, n]` decides
    among a node's children, `uniform_samples_for_final_sampling` `[batch]` the token after the last node walked over,
    which is none of that node's children (`draft_probs` gets what is taken off for them). A child is also taken if its
    probability is `threshold_single` or more; `threshold_acc` below 1 takes children more often.
    """
    for request in range(candidates.shape[0]):
        node = right = 0
        while True:
            row = int(retrive_index[request, node])
            accept_index[request, right] = row
            probs = target_probs[request, node]
            child = int(retrive_next_token[request, node]) if right + 1 < accept_index.shape[1] else -1
            so_far = 0.0
            while child != -1:
                token = int(candidates[request, child])
                so_far += float(probs[token])
                if float(uniform_samples[request, node]) <= so_far / threshold_acc or probs[token] >= threshold_single:
                    break
                draft_probs[request, node, token] = probs[token]
                child = int(retrive_next_sibling[request, child])
            if child == -1:
                rest = (probs - draft_probs[request, node]).clamp_min(0).double().cumsum(0)
                coin = float(uniform_samples_for_final_sampling[request]) * rest[-1]
                predicts[row] = int((rest <= coin).sum().clamp_max(rest.numel() - 1))
                break
            predicts[row] = token
            node, right = child, right + 1
        accept_token_num[request] = right


def _normalized(probs: torch.Tensor) -> torch.Tensor:
    return probs / probs.sum(dim=1, keepdim=True)
