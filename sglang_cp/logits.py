"""Which rows of a CP extend the LM head reads: the last of each request, unless somebody asked for more."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch


def last_rows_only(forward_batch: Any) -> Any:
    """SGLang's LogitsMetadata of a batch of which only the last row of each request is read; None for any other.

    All rows are read for logprobs of the prompt, for hidden states of the prompt (a caller's, or those of a draft
    model), and for what scores several items of one prompt.
    """
    from sglang.srt.layers.logits_processor import LogitsMetadata

    asked = LogitsMetadata.from_forward_batch(forward_batch)
    if (
        asked.extend_return_logprob
        or asked.capture_hidden_mode.is_full()
        or asked.padded_static_len >= 0
        or forward_batch.multi_item_delimiter_indices is not None
    ):
        return None
    return asked


def places(forward_batch: Any) -> torch.Tensor | None:
    """Where the rows that SGLang's logits processor reads are, in token order: [requests], int64; None for all rows."""
    if last_rows_only(forward_batch) is None:
        return None
    last: torch.Tensor = forward_batch.extend_seq_lens.cumsum(0) - 1
    return last


def metadata(forward_batch: Any) -> Any:
    """What to hand the logits processor with the rows at :func:`places`: a batch with one new token a request."""
    asked = last_rows_only(forward_batch)
    if asked is None:
        return forward_batch
    return dataclasses.replace(asked, extend_seq_lens=torch.ones_like(asked.extend_seq_lens))
