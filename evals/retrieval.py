"""Needles in long prompts with CP off and on: ``python -m evals.retrieval --baseline URL --candidate URL``.

Every prompt hides a needle (a name and its number) at each depth and asks for one of them; an answer is right if it is
exactly that number. Top-k must keep the needle's keys among all others, and CP must find the same. The servers' radix
caches are emptied first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from evals.accuracy import (
    Alpha,
    Baseline,
    Candidate,
    Concurrency,
    IndexTopk,
    Output,
    compare,
    finish,
    one_sentence,
    require_same_tokens,
    require_share,
    whole_numbers,
)
from evals.asking import ask_by_length
from evals.given import BASELINE, CANDIDATE, GivenServer, given_arms, model_index_topk, require_parent
from evals.haystack import INTRO, NAMES, Trial, assemble, plan
from evals.prompts import TEXT
from sglang_cp.errors import UsageError

MARGIN = 0.05
ANSWER_TOKENS = 16
"""Enough for seven digits, even at a token a byte."""


@dataclass(frozen=True)
class Answer:
    """What an arm said to a trial."""

    trial: Trial
    text: str

    @property
    def right(self) -> bool:
        return self.trial.is_right(self.text)

    def as_dict(self) -> dict[str, Any]:
        trial = self.trial
        return {"length": trial.length, "depth": trial.depth, "number": trial.number, "answer": self.text}


def main(
    baseline: Baseline = None,
    candidate: Candidate = None,
    lengths: Annotated[str, typer.Option(help="Of the prompts, in tokens.")] = "8192,16384,32768,65536,131072",
    depths: Annotated[str, typer.Option(help="Of the needles, in percent.")] = "0,10,20,30,40,50,60,70,80,90,100",
    samples: Annotated[int, typer.Option(help="Prompts of each length and depth.", min=1)] = 4,
    text: Annotated[Path, typer.Option(help="UTF-8 text of the haystack; repeated where it is too short.")] = TEXT,
    concurrency: Concurrency = 4,
    seed: Annotated[int, typer.Option(help="Of names, numbers and haystacks.")] = 0,
    margin: Annotated[float, typer.Option(help="Largest difference in share found of equal arms.")] = MARGIN,
    alpha: Alpha = 0.05,
    index_topk: IndexTopk = None,
    plot: Annotated[Path | None, typer.Option(help="Write the heat map, a PNG.")] = None,
    output: Output = None,
) -> None:
    """Look for needles with CP off and on; exit code 1 unless the arms are equal and CP took part, 2 for unusable
    input."""
    console = Console()
    with one_sentence(console):
        tokens_of_prompts = whole_numbers("--lengths", lengths, low=1)
        percents = whole_numbers("--depths", depths, low=0, high=100)
        if len(percents) > len(NAMES):
            raise UsageError(f"--depths names {len(percents)} depths: give at most {len(NAMES)}.")
        require_share("--margin", margin)
        require_share("--alpha", alpha)
        require_parent("--output", output)
        require_parent("--plot", plot)
        if plot is not None and plot.suffix.lower() != ".png":
            raise UsageError(f"--plot {plot} is no PNG: let its name end in .png.")
        haystack = _read(text)
        trials = [trial for length in tokens_of_prompts for trial in plan(length, percents, samples, seed)]
        with given_arms(baseline, candidate) as arms:
            topk = model_index_topk(arms[-1], index_topk)
            for arm in arms:
                arm.require_room(tokens_of_prompts[-1], ANSWER_TOKENS, "shorter --lengths")
            prompts = _prompts(arms, trials, percents, haystack)
            texts, parts = ask_by_length(
                arms, prompts, answer_tokens=ANSWER_TOKENS, index_topk=topk, concurrency=concurrency, console=console
            )
    answers = {
        arm: [Answer(trial, said) for trial, said in zip(trials, chain(*given.values()), strict=True)]
        for arm, given in texts.items()
    }
    shares = {arm: _shares(given) for arm, given in answers.items()}
    console.print(_table(shares))
    if plot is not None:
        from evals.heatmap import heat_map

        heat_map(shares).savefig(plot, dpi=150)
    right = {arm: [answer.right for answer in given] for arm, given in answers.items()}
    pairs = {"needles found": (right[BASELINE], right[CANDIDATE])} if len(right) == 2 else {}
    report: dict[str, Any] = {
        "eval": "retrieval",
        "depths": percents,
        "samples": samples,
        "text": str(text),
        "seed": seed,
        "index_topk": topk,
        "found": {arm: [_cell(*item) for item in cells.items()] for arm, cells in shares.items()},
        "answers": {arm: [answer.as_dict() for answer in given] for arm, given in answers.items()},
    }
    finish(console, report, compare(pairs, margin, alpha), parts, output)


def _read(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--text {path} cannot be read as UTF-8 text: {error}.") from error
    if not text.strip():
        raise UsageError(f"--text {path} is empty: give a text, best a book.")
    return text


def _prompts(
    arms: Sequence[GivenServer], trials: Sequence[Trial], depths: Sequence[int], text: str
) -> dict[int, list[list[int]]]:
    """By length, each trial's prompt as token ids; ``trials`` come length by length, and so do the prompts."""
    texts = [text, *(part for trial in trials for part in (*trial.needles, trial.question))]
    tokens = [[*arm.tokenize([INTRO], special=True), *arm.tokenize(texts, special=False)] for arm in arms]
    require_same_tokens(arms, tokens)
    intro, hay, *parts = tokens[0]
    size = len(depths) + 1
    prompts: dict[int, list[list[int]]] = {trial.length: [] for trial in trials}
    for trial, at in zip(trials, range(0, len(parts), size), strict=True):
        prompt = assemble(trial, depths, hay, intro, parts[at : at + size - 1], parts[at + size - 1])
        prompts[trial.length].append(prompt)
    return prompts


def _shares(answers: Sequence[Answer]) -> dict[tuple[int, int], float]:
    """By length and depth, the share that is right."""
    cells: dict[tuple[int, int], list[bool]] = {}
    for answer in answers:
        cells.setdefault((answer.trial.length, answer.trial.depth), []).append(answer.right)
    return {cell: sum(right) / len(right) for cell, right in cells.items()}


def _cell(cell: tuple[int, int], share: float) -> dict[str, float]:
    return {"length": cell[0], "depth": cell[1], "share": share}


def _table(shares: dict[str, dict[tuple[int, int], float]]) -> Table:
    """A row a depth; a column a length, with each arm's share in percent."""
    arms = list(shares)
    shown = Table(title=f"needles found, %: {' / '.join(arms)}", title_justify="left")
    lengths = sorted({length for length, _ in shares[arms[0]]})
    shown.add_column("depth, %", justify="right")
    for length in lengths:
        shown.add_column(f"{length:,}", justify="right")
    for depth in sorted({depth for _, depth in shares[arms[0]]}):
        shown.add_row(
            str(depth), *(" / ".join(f"{100 * shares[arm][length, depth]:.0f}" for arm in arms) for length in lengths)
        )
    return shown


if __name__ == "__main__":
    typer.run(main)
