"""How the random model behaves, in transformers' own forward pass on the CPU in float32.

What is asked: faults in sparse attention must be audible, and rounding must not be.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from sglang_cp.tiny_checkpoint import TinyConfig, write_tiny_checkpoint
from sglang_cp.tiny_checkpoint.vocabulary import GENERATED_IDS

# Prose as long as an ordinary prompt: 700 bytes, 700 tokens.
TEXT = Path(__file__).with_name("prose.txt").read_bytes()[:700]
TOPK = TinyConfig().index_topk
# Two float32 evaluations that add in another order differ by about 1e-5 in a logit.
ROUNDING = 1e-4

CONFIGS = {
    "glm": TinyConfig(),
    "glm-shared": TinyConfig(index_share=True),
    "glm-8-layers": TinyConfig(layers=8, seed=7),
    "deepseek-v32": TinyConfig(arch="deepseek-v32"),
}


def load(directory: Path) -> tuple[Any, dict[str, Any]]:
    model, info = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    return model.eval(), info


def logits(model: Any, tokens: bytes) -> torch.Tensor:
    """Next-token logits, [tokens, vocabulary]."""
    with torch.no_grad():
        result: torch.Tensor = model(torch.tensor([list(tokens)]), use_cache=False).logits[0]
    return result


@pytest.fixture(scope="module", params=CONFIGS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("behaviour") / "tiny"
    write_tiny_checkpoint(directory, CONFIGS[request.param])
    loaded, info = load(directory)
    assert not any(info.values()), f"transformers misses or rejects weights: {info}"
    return loaded


@pytest.fixture(scope="module")
def reference(model: Any) -> torch.Tensor:
    return logits(model, TEXT)


def test_logits_are_spread_and_their_winner_is_clear(reference: torch.Tensor) -> None:
    generated = reference[:, list(GENERATED_IDS)]
    assert torch.isfinite(reference).all()
    assert 2.5 < generated.std() < 3.5
    best, second = generated.topk(2).values.unbind(-1)
    assert (best - second).median() > 0.3
    assert ((best - second) < 10 * ROUNDING).float().mean() < 0.01


def test_only_printable_ascii_is_generated(reference: torch.Tensor) -> None:
    winners = reference.argmax(-1)
    assert set(winners.tolist()) <= set(GENERATED_IDS)
    assert winners.unique().numel() > 20


def test_greedy_text_is_neither_constant_nor_a_short_cycle(model: Any) -> None:
    with torch.no_grad():
        output = model.generate(torch.tensor([list(TEXT[:100])]), max_new_tokens=64, do_sample=False)
    generated = bytes(output[0, 100:].tolist())
    assert len(generated) == 64, "ended early"
    assert len(set(generated)) >= 8
    assert all(generated[-32:] != (generated[-period:] * 32)[-32:] for period in range(1, 9)), generated


def test_attention_is_neither_uniform_nor_on_one_key(model: Any) -> None:
    with torch.no_grad():
        attentions = model(torch.tensor([list(TEXT)]), output_attentions=True, use_cache=False).attentions
    for weights in attentions:
        assert ((weights > 0).sum(-1) <= TOPK).all(), "more keys than index_topk"
        effective_keys = 1 / weights[0, :, 200:].square().sum(-1)
        assert 3 < effective_keys.median() < 0.75 * TOPK


def test_attention_and_ffn_move_the_residual(model: Any) -> None:
    scales: dict[str, float] = {}

    def record(name: str) -> Any:
        def hook(_module: Any, _args: Any, output: Any) -> None:
            scales[name] = (output[0] if isinstance(output, tuple) else output).std().item()

        return hook

    handles = []
    for index, layer in enumerate(model.model.layers):
        for part in ("self_attn", "mlp"):
            handles.append(getattr(layer, part).register_forward_hook(record(f"{index}.{part}")))
        handles.append(layer.register_forward_hook(record(f"{index}.layer")))
    logits(model, TEXT)
    for handle in handles:
        handle.remove()
    for index in range(len(model.model.layers)):
        residual = scales[f"{index}.layer"]
        assert scales[f"{index}.self_attn"] > 0.2 * residual, scales
        assert scales[f"{index}.mlp"] > 0.1 * residual, scales


def test_an_early_token_changes_all_later_logits(model: Any, reference: torch.Tensor) -> None:
    changed = TEXT[:3] + bytes([TEXT[3] ^ 1]) + TEXT[4:]
    difference = (logits(model, changed) - reference).abs().amax(-1)
    assert difference[:3].max() < ROUNDING
    assert difference[3:].min() > 0.02


def test_rounding_is_not_heard(model: Any, reference: torch.Tensor) -> None:
    """In chunks, products have other shapes and round differently: near-ties in top-k or routing would show."""
    cache = DynamicCache(config=model.config)
    chunks = []
    with torch.no_grad():
        for tokens in torch.tensor([list(TEXT)]).split(150, dim=1):
            chunks.append(model(tokens, past_key_values=cache, use_cache=True).logits[0])
    assert (torch.cat(chunks) - reference).abs().max() < ROUNDING


def test_no_row_ties_at_the_top_k_boundary(model: Any) -> None:
    """A tie is broken by whichever rank sees it; none may be there to break."""
    gaps: list[torch.Tensor] = []
    topk = torch.Tensor.topk

    def record(scores: torch.Tensor, k: int, **kwargs: Any) -> Any:
        if scores.dim() == 3 and k == TOPK:
            best = topk(scores[0, TOPK:], TOPK + 1, dim=-1).values
            gaps.append(best[:, -2] - best[:, -1])
        return topk(scores, k, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "topk", record)
        logits(model, TEXT)
    assert len(gaps) == sum(getattr(layer.self_attn, "indexer", None) is not None for layer in model.model.layers)
    assert min(gap.min().item() for gap in gaps) > 0


def set_index_topk(model: Any, topk: int) -> None:
    for layer in model.model.layers:
        if getattr(layer.self_attn, "indexer", None) is not None:
            layer.self_attn.indexer.index_topk = topk


@pytest.mark.parametrize("topk", [TOPK - 1, TOPK + 1, 2048])
def test_one_key_more_or_less_is_heard_from_where_top_k_acts(model: Any, reference: torch.Tensor, topk: int) -> None:
    """A prompt of 100 tokens is long enough for sparsity to act, and a single wrong key to be noticed."""
    set_index_topk(model, topk)
    try:
        difference = (logits(model, TEXT[:100]) - reference[:100]).abs().amax(-1)
    finally:
        set_index_topk(model, TOPK)
    acts_from = min(topk, TOPK)
    assert difference[:acts_from].max() < ROUNDING
    assert difference[acts_from:].min() > 100 * ROUNDING


def test_shared_layers_use_the_top_k_of_the_layer_before(tmp_path: Path) -> None:
    """Two checkpoints whose only difference is sharing: the same weights, fewer of them, other logits."""
    models = []
    for share in (False, True):
        write_tiny_checkpoint(tmp_path / str(share), TinyConfig(index_share=share))
        models.append(load(tmp_path / str(share))[0])
    own, shared = models
    missing = own.state_dict().keys() - shared.state_dict().keys()
    assert {name.split(".indexer.")[0] for name in missing} == {f"model.layers.{i}.self_attn" for i in (1, 2)}
    difference = (logits(own, TEXT[:100]) - logits(shared, TEXT[:100])).abs().amax(-1)
    assert difference[:TOPK].max() < ROUNDING
    assert difference[TOPK:].min() > 100 * ROUNDING
