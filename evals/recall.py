"""Key-value recall with CP off and on: ``python -m evals.recall --baseline URL --candidate URL``.

For servers of a checkpoint that ``python -m evals.train_recall`` made, best at ``--dtype float32``. Both arms must give
the same answers, to the character. A prompt is stored records and one key to look up; top-k must keep its record's keys
among thousands. The servers' radix caches are emptied first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from evals.accuracy import (
    Baseline,
    Candidate,
    Concurrency,
    IndexTopk,
    Output,
    cp_problems,
    one_sentence,
    participation_table,
    require_share,
    whole_numbers,
)
from evals.asking import Texts, ask_by_length
from evals.given import given_arms, model_index_topk, require_parent
from evals.recall_task import KEY_TOKENS, RECORD_TOKENS, VALUE_TOKENS, Question, RecallTask


def main(
    baseline: Baseline = None,
    candidate: Candidate = None,
    lengths: Annotated[str, typer.Option(help="Of the prompts, in tokens.")] = "1024,2048,4096",
    samples: Annotated[int, typer.Option(help="Prompts of each length.", min=1)] = 32,
    letters: Annotated[int, typer.Option(help="Of keys, as trained: 52, or 16 for the quick recipe.")] = 52,
    concurrency: Concurrency = 4,
    seed: Annotated[int, typer.Option(help="Of keys and values.", min=0)] = 0,
    least_recall: Annotated[float, typer.Option(help="Share of values that each arm must recall.")] = 0.95,
    index_topk: IndexTopk = None,
    output: Output = None,
) -> None:
    """Ask for stored values with CP off and on; exit code 1 unless all answers are the same, recall is high and CP took
    part, 2 for unusable input."""
    console = Console()
    with one_sentence(console):
        tokens = whole_numbers("--lengths", lengths, low=RECORD_TOKENS + KEY_TOKENS)
        require_share("--least-recall", least_recall)
        require_parent("--output", output)
        task = RecallTask(letters)
        questions = {
            length: [task.question(np.random.default_rng([seed, length, sample]), length) for sample in range(samples)]
            for length in tokens
        }
        with given_arms(baseline, candidate) as arms:
            topk = model_index_topk(arms[-1], index_topk)
            for arm in arms:
                arm.require_room(tokens[-1], VALUE_TOKENS, "shorter --lengths")
            texts, parts = ask_by_length(
                arms,
                {length: [question.prompt for question in asked] for length, asked in questions.items()},
                answer_tokens=VALUE_TOKENS,
                index_topk=topk,
                concurrency=concurrency,
                console=console,
            )
    shares = {arm: {n: _share(questions[n], given) for n, given in runs.items()} for arm, runs in texts.items()}
    problems = [*cp_problems(parts), *judge(texts, shares, least_recall)]
    console.print(_table(shares), participation_table(parts), sep="\n")
    for problem in problems:
        console.print(problem, style="red", markup=False, soft_wrap=True)
    if output is not None:
        report: dict[str, Any] = {
            "eval": "recall",
            "letters": letters,
            "samples": samples,
            "seed": seed,
            "index_topk": topk,
            "recall": shares,
            "answers": texts,
            "expected": {length: [question.answer for question in asked] for length, asked in questions.items()},
            "participation": {
                arm: {name: part.as_dict() for name, part in runs.items()} for arm, runs in parts.items()
            },
            "problems": problems,
        }
        output.write_text(json.dumps(report, indent=1) + "\n")
    if problems:
        raise typer.Exit(1)


def judge(texts: Texts, shares: Mapping[str, Mapping[int, float]], least: float) -> list[str]:
    """What speaks against the arms, each one sentence: answers that differ, and recall under ``least``."""
    found = [
        f"{length:,} tokens: {arm} recalls {share:.1%}, less than {least:.0%}: does it serve what evals.train_recall "
        "made, with as many --letters?"
        for arm, by_length in shares.items()
        for length, share in by_length.items()
        if share < least
    ]
    reference, *others = texts.values()
    for other in others:
        for length, answers in reference.items():
            differing = sum(a != b for a, b in zip(answers, other[length], strict=True))
            if differing:
                found.append(
                    f"{length:,} tokens: the arms give other answers to {differing} of {len(answers)} prompts."
                )
    return found


def _share(questions: Sequence[Question], texts: Sequence[str]) -> float:
    right = [text == question.answer for question, text in zip(questions, texts, strict=True)]
    return sum(right) / len(right)


def _table(shares: Mapping[str, Mapping[int, float]]) -> Table:
    """A row a length, a column an arm."""
    shown = Table(title="values recalled, %", title_justify="left")
    for column in ("tokens", *shares):
        shown.add_column(column, justify="right")
    for length in next(iter(shares.values())):
        shown.add_row(f"{length:,}", *(f"{100 * by_length[length]:.1f}" for by_length in shares.values()))
    return shown


if __name__ == "__main__":
    typer.run(main)
