"""How a small model learns key-value recall with sparse attention.

Top-k selection has no gradient, so the model learns as DeepSeek V3.2 did (its report's dense warm-up), in two stages:

1. attention: top-k is off, and the model learns to answer on ever longer sequences. A second loss guides the heads,
   which saves most of the time: those of the first layer to one of the three tokens before, those of the second to the
   value asked for.
2. indexer: all else is frozen, and each indexer learns the attention of its layer, summed over heads (Kullback-Leibler
   divergence).

DeepSeek went on to train everything with top-k on. That is not needed here: top-k costs no recall.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from evals.recall_model import build, indexers, set_dense
from evals.recall_task import RECORD_TOKENS, VALUE_TOKENS, Batch, RecallTask
from sglang_cp.tiny_checkpoint.config import TinyConfig

WARMUP_STEPS = 50
INIT_STD = 0.06
GUIDANCE = 0.3
"""Weight of the second loss."""
STORED = (0.5, 0.9)
"""Least and largest share of a sequence's records that are stored, the rest is asked."""


@dataclass(frozen=True)
class Stage:
    """Steps of one kind at one length. ``tokens``: of a step, all sequences together; at least one sequence."""

    length: int
    steps: int
    tokens: int


@dataclass(frozen=True)
class Recipe:
    """What is trained, on what, for how long.

    Attributes:
        config: sizes of the checkpoint.
        task: what it learns.
        attention, indexer: the stages, in their order.
        learning_rate, indexer_learning_rate: at their highest.
        rows: of a sequence, on which the indexer learns in a step.
        lengths: at which recall is measured, in tokens.
        samples: sequences measured a length.
    """

    config: TinyConfig
    task: RecallTask
    attention: tuple[Stage, ...]
    indexer: tuple[Stage, ...]
    learning_rate: float
    indexer_learning_rate: float
    rows: int
    lengths: tuple[int, ...]
    samples: int

    @property
    def steps(self) -> int:
        return sum(stage.steps for stage in (*self.attention, *self.indexer))


@dataclass(frozen=True)
class Point:
    """A step of a stage.

    Attributes:
        stage: attention or indexer.
        step: of the stage, from 0.
        length: of its sequences, in tokens, up to 3 less.
        loss: of the answers or of the indexers, nats.
        guidance: loss of the heads' guidance, nats; of the first stage only.
        recall: share of answer tokens that was right with top-k off; of the first stage only.
        seconds: since training began.
    """

    stage: str
    step: int
    length: int
    loss: float
    guidance: float | None
    recall: float | None
    seconds: float


@dataclass(frozen=True)
class Loss:
    """What a step minimises, with what a `Point` says of it."""

    total: torch.Tensor
    task: torch.Tensor
    guidance: torch.Tensor | None = None
    recall: torch.Tensor | None = None


def train(recipe: Recipe, device: torch.device, seed: int, on: Callable[[Point], None]) -> Any:
    """A model that has gone through both stages; its top-k is on. ``on`` is called after each step."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    model = build(recipe.config, INIT_STD, device)
    own = [parameter for indexer in indexers(model) for parameter in indexer.parameters()]
    rest = [parameter for name, parameter in model.named_parameters() if ".indexer." not in name]
    started = time.monotonic()

    def run(name: str, stages: tuple[Stage, ...], weights: list[Any], rate: float, loss_of: Any) -> None:
        total = sum(stage.steps for stage in stages)
        optimizer = torch.optim.AdamW(weights, lr=rate, betas=(0.9, 0.98), weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, total))
        for step, stage in enumerate(itertools.chain.from_iterable([stage] * stage.steps for stage in stages)):
            # Other lengths by a few tokens: records begin at any position, and on any rank.
            length = stage.length - int(rng.integers(RECORD_TOKENS))
            batch = recipe.task.batch(rng, length, max(1, stage.tokens // stage.length), rng.uniform(*STORED))
            loss = loss_of(batch)
            optimizer.zero_grad()
            loss.total.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            schedule.step()
            seconds = time.monotonic() - started
            on(Point(name, step, stage.length, loss.task.item(), _item(loss.guidance), _item(loss.recall), seconds))

    run("attention", recipe.attention, rest, recipe.learning_rate, lambda batch: _attention_loss(model, batch))
    run(
        *("indexer", recipe.indexer, own, recipe.indexer_learning_rate),
        lambda batch: _indexer_loss(model, batch, recipe.rows, rng),
    )
    set_dense(model, False)
    return model


def _item(figure: torch.Tensor | None) -> float | None:
    return None if figure is None else figure.item()


def _rate(step: int, total: int) -> float:
    """Share of the learning rate: up over the first steps, down over the last 40 %."""
    return min(1.0, (step + 1) / WARMUP_STEPS, (total - step) / (0.4 * total))


def _attention_loss(model: Any, batch: Batch) -> Loss:
    """Cross entropy of the answers, and the mean negative log of the attention that the heads pay where they should."""
    tokens, asked, sources = _tensors(batch, model.device)
    output = model.model(tokens, use_cache=False, output_attentions=True)
    logits = model.lm_head(output.last_hidden_state[:, asked - 1])
    targets = tokens[:, asked]
    answers = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    look_back, look_up = output.attentions
    offsets = [head % (RECORD_TOKENS - 1) + 1 for head in range(look_back.shape[1])]
    paid = [look_back[:, head].diagonal(-offset, 1, 2) for head, offset in enumerate(offsets)]
    paid_back = sum(_surprise(attention) for attention in paid) / len(paid)
    paid_up = _surprise(look_up[:, :, asked - 1].mean(1).gather(-1, sources.unsqueeze(-1)))
    guidance = paid_back + paid_up
    recalled = (logits.argmax(-1) == targets).float().mean()
    return Loss(answers + GUIDANCE * guidance, answers, guidance, recalled)


def _surprise(probability: torch.Tensor) -> torch.Tensor:
    return -probability.clamp_min(1e-9).log().mean()


def _indexer_loss(model: Any, batch: Batch, rows: int, rng: np.random.Generator) -> Loss:
    """Divergence of the indexers' distributions over keys from their layers' attention, mean over rows and layers."""
    tokens, *_ = _tensors(batch, model.device)
    with torch.no_grad():
        attentions = model.model(tokens, use_cache=False, output_attentions=True).attentions
    length = tokens.shape[1]
    chosen = torch.from_numpy(np.sort(rng.permutation(length)[:rows])).to(model.device)
    losses = []
    for indexer, attention in zip(indexers(model), attentions, strict=True):
        wanted = attention[:, :, chosen].mean(1)
        found = indexer.scores(chosen).log_softmax(-1).masked_fill(wanted == 0, 0.0)  # 0 x infinity, in the future
        losses.append((torch.xlogy(wanted, wanted) - wanted * found).sum(-1))
    divergence = torch.stack(losses).mean()
    return Loss(divergence, divergence)


def _tensors(batch: Batch, device: torch.device) -> Iterator[torch.Tensor]:
    return (torch.from_numpy(part).to(device) for part in (batch.tokens, batch.asked, batch.sources))


@torch.no_grad()
def recall(model: Any, task: RecallTask, length: int, samples: int, seed: int) -> float:
    """Share of values that are recalled whole, given 9 records in 10 stored and 1 asked."""
    rng = np.random.default_rng([seed, length])
    right = []
    for _ in range(samples):
        tokens, asked, _ = _tensors(task.batch(rng, length, 1, stored_share=0.9), model.device)
        logits = model(tokens, use_cache=False).logits[:, asked - 1]
        right.append((logits.argmax(-1) == tokens[:, asked]).view(-1, VALUE_TOKENS).all(-1))
    return torch.cat(right).float().mean().item()


def measured(model: Any, recipe: Recipe, seed: int) -> dict[int, dict[str, float]]:
    """Recall by length in tokens, with top-k off and on."""
    shares: dict[int, dict[str, float]] = {length: {} for length in recipe.lengths}
    for name, dense in (("top-k off", True), ("top-k on", False)):
        set_dense(model, dense)
        for length in recipe.lengths:
            shares[length][name] = recall(model, recipe.task, length, recipe.samples, seed + 1)
    return shares
