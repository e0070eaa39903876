"""The exact mode's KV pool: upstream's DSA pool with float32 latents and index keys."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool


class ExactDSATokenToKVPool(DSATokenToKVPool):
    """Same shapes as upstream's pool, float32 elements (see `kernels.index_pages`)."""

    index_k_with_scale_buffer_dtype = torch.float32

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "dtype": torch.float32})
