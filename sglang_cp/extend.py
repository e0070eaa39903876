"""One CP extend: what the seams in SGLang ask while a forward batch that is dealt out runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from sglang_cp.layout import TokenLayout
from sglang_cp.rows import RowCollectives


class Placement(Protocol):
    """How a layer's attention gets the weights of all heads."""

    def begin(self) -> None:
        """A CP extend starts."""
        ...

    def attention(self, layer: Any) -> Any:
        """The attention module to call in place of ``layer``."""
        ...


class CPExtend:
    """Stands on the forward batch (``attn_cp_metadata``) from before the attention backend plans until its end.

    Hidden states, positions and per-row metadata are *local*: this rank's rows. Latents, index keys and everything
    that the KV pool stores are complete, in token order.
    """

    per_batch = True
    """How SGLang's seams tell this object from the metadata of the static CP modes."""

    def __init__(self, layout: TokenLayout, rows: RowCollectives, placement: Placement) -> None:
        self.layout = layout
        self._rows = rows
        self._placement = placement

    # Rows in and out of the model.

    def shard_rows(self, complete: torch.Tensor) -> torch.Tensor:
        """[num_rows, ...] -> [padded_rows, ...]: embeddings or positions of this rank's rows."""
        return self.layout.pad(self.layout.own(complete))

    def gather_rows(self, local: torch.Tensor) -> torch.Tensor:
        """[padded_rows, ...] -> [num_rows, ...] in token order: latents, index keys, the final hidden states."""
        return self._rows.all_gather_dealt(local)[: self.layout.num_rows]

    def gather_rows_at(self, local: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """[padded_rows, ...] -> [len(places), ...]: only the rows at ``places`` in token order, integers on the device.

        Each rank gives one row for each place, its own or its neighbour's, so that no length depends on who owns what.
        """
        return self.layout.pick(self._rows.all_gather(self.layout.near(local, places)), places)

    # Metadata of the attention backend: real rows only, since a padding row attends to nothing.

    def own_rows(self, complete: torch.Tensor) -> torch.Tensor:
        """[num_rows, ...] -> [local_rows, ...]: per-row metadata such as expanded sequence lengths, ks and ke."""
        return self.layout.own(complete)

    def pad_rows(self, local: torch.Tensor) -> torch.Tensor:
        """[local_rows, ...] -> [padded_rows, ...]: per-row metadata that a kernel reads for padding rows too."""
        return self.layout.pad(local)

    def split_requests(
        self, extend_lens: Sequence[int], like: torch.Tensor
    ) -> tuple[list[int], torch.Tensor, list[int], torch.Tensor]:
        """Rows on this rank of each request that has any, and which requests those are.

        Args:
            extend_lens: new tokens of each request of the batch.
            like: tensor whose device and dtype the row counts get.

        Returns:
            rows (list), rows (tensor like ``like``), request indices (list), request indices (int32 tensor).
        """
        split = self.layout.split_requests(extend_lens)
        # Not tensors made on the device: that waits until it has done all that was issued.
        counts = torch.tensor(split.rows, dtype=like.dtype).to(like.device, non_blocking=True)
        indices = torch.tensor(split.indices, dtype=torch.int32).to(like.device, non_blocking=True)
        return split.rows, counts, split.indices, indices

    # Between attention and MoE or dense FFN, which stay tensor parallel over the complete token set.

    def gather_for_mlp(
        self, attention_output: torch.Tensor, residual: torch.Tensor, layernorm: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Norm on [padded_rows, hidden], then all-gather to [gathered_rows, hidden]; the residual stays local.

        The attention of a padding row is undefined (it has no keys); it is zeroed here to keep it out of the MoE.
        """
        attention_output[self.layout.local_rows :].zero_()
        hidden, residual = layernorm(attention_output, residual)
        return self._rows.all_gather(hidden), residual

    def reduce_from_mlp(self, partial: torch.Tensor) -> torch.Tensor:
        """[gathered_rows, hidden] of partial sums -> [padded_rows, hidden]; in place of plain TP's all-reduce."""
        return self._rows.reduce_scatter(partial)

    # Attention weights.

    def all_heads(self, local_heads: int) -> int:
        """Heads that a row of this batch has, of which plain TP gives each rank ``local_heads``."""
        return local_heads * self.layout.size

    def attention(self, layer: Any) -> Any:
        """The attention module with all heads for upstream's ``layer``."""
        return self._placement.attention(layer)
