"""The model that learns recall: transformers' GlmMoeDsa with an indexer that can be trained, and its checkpoint."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from transformers import AutoConfig, GlmMoeDsaForCausalLM
from transformers.models.glm_moe_dsa.modeling_glm_moe_dsa import GlmMoeDsaIndexer, apply_rotary_pos_emb
from transformers.utils import logging

from sglang_cp.tiny_checkpoint.config import TinyConfig
from sglang_cp.tiny_checkpoint.weights import tensor_specs
from sglang_cp.tiny_checkpoint.writer import write_tiny_checkpoint


class TrainableIndexer(GlmMoeDsaIndexer):
    """The lightning indexer, whose scores have gradients here and whose top-k can be off.

    Attributes:
        dense: select every key, without scoring.
        inputs: hidden states, query latent and rotary embedding of the last forward pass.
    """

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__(config, layer)
        self.dense = True
        self.inputs: tuple[Any, Any, Any] | None = None

    def forward(
        self, hidden: torch.Tensor, q_latent: torch.Tensor, rotary: Any, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """Selected keys, int32 ``[sequences, rows, selected]``."""
        self.inputs = (hidden.detach(), q_latent.detach(), rotary)
        if self.dense:
            sequences, rows, _ = hidden.shape
            return torch.arange(rows, device=hidden.device, dtype=torch.int32).expand(sequences, rows, rows)
        selected: torch.Tensor = super().forward(hidden, q_latent, rotary, *args, **kwargs)
        return selected

    def scores(self, rows: torch.Tensor) -> torch.Tensor:
        """Index scores of some rows of the last forward pass: float32 ``[sequences, rows, keys]``, causal.

        DeepSeek V3.2's index score (its report, equation 1): the sum over heads of weight x ReLU(query . key).
        """
        assert self.inputs is not None, "scores are those of a forward pass"
        hidden, q_latent, (cos, sin) = self.inputs
        queries = self.wq_b(q_latent[:, rows]).unflatten(-1, (self.n_heads, self.head_dim))
        keys = self.k_norm(self.wk(hidden)).unsqueeze(2)
        queries = self._rotated(queries, cos[:, rows], sin[:, rows])
        keys = self._rotated(keys, cos, sin).squeeze(2)
        products = torch.relu(torch.einsum("brhd,bkd->brhk", queries, keys))
        weights = self.weights_proj(hidden[:, rows]) * (self.n_heads * self.head_dim) ** -0.5
        summed = torch.einsum("brh,brhk->brk", weights, products)
        future = torch.arange(hidden.shape[1], device=hidden.device) > rows.unsqueeze(1)
        return summed.masked_fill(future, float("-inf"))

    def _rotated(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        rotary, rest = x.split([self.qk_rope_head_dim, self.head_dim - self.qk_rope_head_dim], dim=-1)
        return torch.cat([apply_rotary_pos_emb(rotary, rotary, cos, sin, unsqueeze_dim=2)[0], rest], dim=-1)


def build(config: TinyConfig, init_std: float, device: torch.device) -> Any:
    """A new model of a tiny checkpoint's sizes, float32, attention as plain matrix products; top-k is off."""
    settings = AutoConfig.for_model(**config.to_config_json(), initializer_range=init_std)
    model = GlmMoeDsaForCausalLM._from_config(settings, dtype=torch.float32, attn_implementation="eager")
    for index, layer in enumerate(model.model.layers):
        layer.self_attn.indexer = TrainableIndexer(settings, index)
    return model.to(device)


def indexers(model: Any) -> list[TrainableIndexer]:
    """The indexer of every layer."""
    return [layer.self_attn.indexer for layer in model.model.layers]


def set_dense(model: Any, dense: bool) -> None:
    """Let queries attend to every key, or to the index_topk keys that the indexer selects."""
    for indexer in indexers(model):
        indexer.dense = dense


def write_checkpoint(model: Any, config: TinyConfig, directory: Path) -> None:
    """Write what SGLang serves: a tiny checkpoint of ``config`` with the model's weights. All of it, or nothing.

    transformers stores the weights under the published names; config.json and the tokenizer are the tiny checkpoint's,
    for transformers would leave out fields that SGLang needs. Raises OSError if ``directory`` is in use.
    """
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{directory.name}.") as folder:
        logging.disable_progress_bar()
        model.save_pretrained(Path(folder) / "transformers")
        trained = load_file(Path(folder) / "transformers" / "model.safetensors")
        dtype = getattr(torch, config.dtype)
        tensors = {spec.name: trained.pop(spec.name).to(spec.dtype or dtype) for spec in tensor_specs(config)}
        assert not trained, f"no place in a tiny checkpoint for {sorted(trained)}"
        partial = Path(folder) / "tiny"
        write_tiny_checkpoint(partial, config)
        (partial / "model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
        partial.rename(directory)
