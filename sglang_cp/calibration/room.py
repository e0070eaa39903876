"""Which extends a server can hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang_cp.cost.shape import ExtendShape


@dataclass(frozen=True)
class Room:
    """A server's limits.

    Attributes:
        tp: ranks; fewer rows are not dealt out.
        chunk_tokens: most new tokens of an extend.
        context_tokens: most tokens of a request, new and cached.
        pool_tokens: KV slots for all requests.
        page_tokens: of a page of the pool; a request takes whole ones.
        requests: most requests of a batch.
    """

    tp: int
    chunk_tokens: int
    context_tokens: int
    pool_tokens: int
    page_tokens: int
    requests: int

    @classmethod
    def of(cls, scheduler: Any) -> Room:
        """Of SGLang's scheduler with nothing else to do."""
        page_tokens = scheduler.page_size
        pool_tokens = scheduler.max_total_num_tokens - page_tokens
        context_tokens = min(scheduler.model_config.context_len, pool_tokens)
        return cls(
            tp=scheduler.tp_group.world_size,
            chunk_tokens=scheduler.chunked_prefill_size or context_tokens,
            context_tokens=context_tokens,
            pool_tokens=pool_tokens,
            page_tokens=page_tokens,
            requests=scheduler.max_running_requests,
        )

    def holds(self, shape: ExtendShape) -> bool:
        """Whether the server can run an extend of ``shape`` in both modes."""
        taken = sum(
            self._whole_pages(prefix) + self._whole_pages(new)
            for new, prefix in zip(shape.extend_lens, shape.prefix_lens, strict=True)
        )
        return (
            self.tp <= shape.rows <= self.chunk_tokens
            and shape.longest <= self.context_tokens
            and taken <= self.pool_tokens
            and len(shape.extend_lens) <= self.requests
        )

    def _whole_pages(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens) * self.page_tokens
