"""The absorbed kv_b_proj of all heads: w_kc and w_vc with their scales, from every rank's slice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from sglang_cp.weights.shards import ABSORBED


def absorbed_of_all_heads(gathered: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Upstream's attributes for the heads of all ranks.

    Args:
        gathered: name -> [size, heads of a rank, ...] for those of ABSORBED that the format has; ``w_scale`` is one
            scale per rank, which upstream makes of channel scales (and on ROCm of block scales).

    Returns:
        Attribute name -> [all heads, ...], views. Where the ranks have scales of their own, which upstream's kernels
        for one scale cannot take, w_kc and w_vc are new BF16 tensors, and ``w_scale`` is 1.
    """
    heads: dict[str, Any] = {
        name: gathered[name].flatten(0, 1) for name in ABSORBED if name in gathered and name != "w_scale"
    }
    if "w_scale" in gathered:
        scales = gathered["w_scale"].reshape(-1)
        for name in ("w_kc", "w_vc"):
            per_head = scales.repeat_interleave(gathered[name].shape[1]).view(-1, 1, 1)
            heads[name] = (heads[name].float() * per_head).to(torch.bfloat16)
        heads["w_scale"] = 1.0
    return heads
