"""The trainable indexer is transformers' own, and the checkpoint holds the model that was trained."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from evals.recall_model import build, indexers, set_dense, write_checkpoint
from sglang_cp.tiny_checkpoint.config import TinyConfig

CONFIG = TinyConfig(layers=2, hidden=64, heads=4, experts=4, index_topk=8, dtype="float32")
TOKENS = torch.arange(48).mul(7).remainder(95).add(32).unsqueeze(0)


@pytest.fixture(scope="module")
def model():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return build(CONFIG, 0.1, torch.device("cpu"))


def logits(model):
    with torch.no_grad():
        return model(TOKENS, use_cache=False).logits


def test_scores_select_what_transformers_selects(model):
    set_dense(model, False)
    selected = []
    handles = [i.register_forward_hook(lambda _m, _i, output: selected.append(output)) for i in indexers(model)]
    logits(model)
    for handle in handles:
        handle.remove()
    rows = torch.tensor([9, 20, 47])
    for indexer, chosen in zip(indexers(model), selected, strict=True):
        best = indexer.scores(rows).topk(CONFIG.index_topk, dim=-1).indices
        assert torch.equal(best.sort().values, chosen[:, rows].long().sort().values)


def test_scores_are_causal_and_have_gradients(model):
    logits(model)
    rows = torch.tensor([0, 5])
    for indexer in indexers(model):
        scores = indexer.scores(rows)
        assert torch.isinf(scores[0]).sum(-1).tolist() == [47, 42]
        scores[0, 1, :6].sum().backward()
        assert all(parameter.grad.abs().sum() > 0 for parameter in indexer.parameters())


def test_dense_attends_to_every_key(model):
    set_dense(model, True)
    with torch.no_grad():
        attentions = model(TOKENS, use_cache=False, output_attentions=True).attentions
    for attention in attentions:
        assert torch.equal((attention[0] > 0).sum(-1)[0], torch.arange(1, 49))


def test_the_checkpoint_is_the_model(model, tmp_path):
    set_dense(model, False)
    with torch.no_grad():
        for indexer in indexers(model):
            # SGLang holds it in bfloat16, and so does the checkpoint.
            indexer.weights_proj.weight.copy_(indexer.weights_proj.weight.bfloat16())
    (tmp_path / "trained").mkdir()
    write_checkpoint(model, CONFIG, tmp_path / "trained")
    loaded, info = AutoModelForCausalLM.from_pretrained(
        tmp_path / "trained", dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not any(info.values()), info
    assert torch.equal(logits(loaded), logits(model))
    assert [path.name for path in tmp_path.iterdir()] == ["trained"]


def test_a_directory_in_use_is_left_alone(model, tmp_path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(OSError, match="not empty"):
        write_checkpoint(model, CONFIG, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
