"""What each stage of the training changes, what its losses measure, and how recall is counted."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from evals import recall_training
from evals.recall_model import indexers
from evals.recall_task import RecallTask
from evals.recall_training import Point, Recipe, Stage, recall, train
from sglang_cp.tiny_checkpoint.config import TinyConfig

CPU = torch.device("cpu")
TASK = RecallTask(letters=4)
RECIPE = Recipe(
    config=TinyConfig(layers=2, hidden=64, heads=4, experts=4, index_topk=8, dtype="float32"),
    task=TASK,
    attention=(Stage(16, 2, 32), Stage(24, 1, 32)),
    indexer=(Stage(24, 2, 32),),
    learning_rate=1e-2,
    indexer_learning_rate=1e-2,
    rows=8,
    lengths=(24,),
    samples=2,
)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def test_each_stage_changes_its_own_weights(monkeypatch):
    models, snapshots, points = [], [], []
    build = recall_training.build

    def built(*args):
        models.append(build(*args))
        return models[0]

    def on(point):
        points.append(point)
        snapshots.append({name: tensor.clone() for name, tensor in models[0].state_dict().items()})

    monkeypatch.setattr(recall_training, "build", built)
    assert train(RECIPE, CPU, 0, on) is models[0]
    assert [(p.stage, p.step, p.length) for p in points] == [
        *(("attention", 0, 16), ("attention", 1, 16), ("attention", 2, 24)),
        *(("indexer", 0, 24), ("indexer", 1, 24)),
    ]
    assert [p.recall is None for p in points] == [False] * 3 + [True] * 2
    changed = [
        {name for name in before if not torch.equal(before[name], after[name])}
        for before, after in itertools.pairwise(snapshots)
    ]
    names = {name for name, _ in models[0].named_parameters()}
    own = {name for name in names if ".indexer." in name}
    assert changed[0] == changed[1] == names - own
    assert changed[2] == changed[3] == own
    assert not any(indexer.dense for indexer in indexers(models[0]))


def test_the_same_seed_trains_the_same_model():
    first, second, other = (train(RECIPE, CPU, seed, lambda point: None).lm_head.weight for seed in (0, 0, 1))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def attending(batch, heads, shift=0, sure=0.97):
    """A model's stand-in whose heads look where they are guided to, `shift` tokens away; it answers right."""
    length = batch.tokens.shape[1]
    attentions = []
    for layer in range(2):
        weights = torch.full((len(batch.tokens), heads, length, length), (1 - sure) / (length - 1))
        for head in range(heads):
            for row in range(3 + shift, length):
                if layer == 0:
                    weights[:, head, row, row - (1, 2, 3, 1)[head] - shift] = sure
            if layer == 1:
                for sequence, sources in enumerate(batch.sources):
                    weights[sequence, head, batch.asked - 1, sources - shift] = sure
        attentions.append(weights)
    following = torch.from_numpy(np.roll(batch.tokens, -1, axis=1))
    hidden = 10.0 * torch.nn.functional.one_hot(following, 320).float()
    output = SimpleNamespace(last_hidden_state=hidden, attentions=attentions)
    return SimpleNamespace(device=CPU, lm_head=lambda x: x, model=lambda *_, **__: output)


def test_guidance_is_low_where_heads_look_right():
    batch = TASK.batch(np.random.default_rng(0), 66, 2)
    right = recall_training._attention_loss(attending(batch, heads=4), batch)
    wrong = recall_training._attention_loss(attending(batch, heads=4, shift=1), batch)
    assert right.recall == wrong.recall == 1
    assert right.task == wrong.task < 0.05
    # The first rows have no third token before them.
    assert right.guidance < 0.35
    assert wrong.guidance > 6
    assert wrong.total == wrong.task + recall_training.GUIDANCE * wrong.guidance


@pytest.mark.parametrize("faulty", [False, True])
def test_divergence_is_none_where_the_indexer_knows_the_attention(faulty, monkeypatch):
    batch = TASK.batch(np.random.default_rng(0), 24, 2)
    model = recall_training.build(RECIPE.config, 0.3, CPU)
    with torch.no_grad():
        attentions = model.model(torch.from_numpy(batch.tokens), output_attentions=True, use_cache=False).attentions
    for indexer, attention in zip(indexers(model), attentions, strict=True):
        known = attention.sum(1).log() + (torch.arange(24.0) / 24 if faulty else 5.0)
        monkeypatch.setattr(indexer, "scores", lambda rows, known=known: known[:, rows])
    loss = recall_training._indexer_loss(model, batch, 24, np.random.default_rng(0)).total
    assert torch.isfinite(loss)
    assert (loss > 1e-3) if faulty else (loss.abs() < 1e-5)


@pytest.mark.parametrize(("wrong_tokens", "share"), [((), 1.0), ((0,), 0.0), ((1,), 0.0)])
def test_a_value_counts_as_a_whole(wrong_tokens, share):
    def model(tokens, use_cache):
        following = tokens.roll(-1, 1)
        for place in wrong_tokens:
            following[:, 33 + place] = 0
        return SimpleNamespace(logits=torch.nn.functional.one_hot(following, 320).float())

    # 36 tokens: 9 records, of which 8 are stored and the last one's value, at 34 and 35, is asked.
    model.device = CPU
    assert recall(model, TASK, 36, 3, 0) == share


def test_the_rate_rises_and_falls():
    rates = [recall_training._rate(step, 500) for step in range(500)]
    assert rates[0] == 1 / recall_training.WARMUP_STEPS
    assert set(rates[49:300]) == {1.0}
    assert rates[300:] == sorted(rates[300:], reverse=True)
    assert 0 < rates[-1] < 0.01


def test_a_point_says_what_was_measured():
    points: list[Point] = []
    train(replace(RECIPE, attention=(Stage(16, 1, 16),), indexer=(Stage(16, 1, 16),)), CPU, 0, points.append)
    attention, indexer = points
    # An untrained model guesses among 320 tokens, and attends to about 16 keys alike.
    assert attention.loss == pytest.approx(np.log(320), abs=0.5)
    assert indexer.guidance is None
    assert 0 < indexer.loss < 2
