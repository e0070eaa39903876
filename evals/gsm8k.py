"""GSM8K with CP off and on: ``python -m evals.gsm8k --baseline URL --candidate URL``.

lm-eval's own gsm8k task is put to one or two running servers, few-shot, over /v1/completions. Both get the same
prompts; right and wrong answers are compared in pairs. 10-shot prompts are mostly shorter than index_topk (2,048 in
GLM-5.x and DeepSeek V3.2), where no key is dropped: hence 20-shot too. Without a train file in ``--data`` the examples
come from the test questions, never the one that is asked. The servers' radix caches are emptied first, because a cached
prompt is not prefilled, and so not dealt out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
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
from evals.given import BASELINE, CANDIDATE, GivenServer, given_arms, model_index_topk, require_parent
from evals.gsm8k_task import METRICS, Questions, Scores, ask, make_task, prompts, same_answers
from evals.participation import Participation

MARGIN = 0.02


def main(
    baseline: Baseline = None,
    candidate: Candidate = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder with test.jsonl and train*.jsonl; by default openai/gsm8k of the hub.")
    ] = None,
    shots: Annotated[str, typer.Option(help="Numbers of examples in a prompt, a run each.")] = "10,20",
    limit: Annotated[int | None, typer.Option(help="Ask the first so many questions only.", min=2)] = None,
    answer_tokens: Annotated[int, typer.Option(help="Longest answer; lm-eval's own is 256.", min=1)] = 256,
    concurrency: Concurrency = 16,
    seed: Annotated[int, typer.Option(help="Of the choice of examples; lm-eval's own is 1234.")] = 1234,
    margin: Annotated[float, typer.Option(help="Largest difference in share right of equal arms.")] = MARGIN,
    alpha: Alpha = 0.05,
    index_topk: IndexTopk = None,
    output: Output = None,
) -> None:
    """Score GSM8K with CP off and on; exit code 1 unless the arms are equal and CP took part, 2 for unusable input."""
    console = Console()
    with one_sentence(console):
        counts = whole_numbers("--shots", shots, low=0)
        require_share("--margin", margin)
        require_share("--alpha", alpha)
        require_parent("--output", output)
        questions = Questions.read(data) if data is not None else None
        if questions is not None:
            questions.require_shots(counts[-1])
        with given_arms(baseline, candidate) as arms:
            topk = model_index_topk(arms[-1], index_topk)
            scores: dict[str, dict[str, Scores]] = {arm.name: {} for arm in arms}
            parts: dict[str, dict[str, Participation]] = {arm.name: {} for arm in arms}
            new_task = partial(make_task, questions, seed=seed)
            lengths = {n: _prompt_tokens(arms, prompts(new_task(n), limit), answer_tokens) for n in counts}
            for count in counts:
                for arm in arms:
                    run = f"{count}-shot"
                    console.print(f"{run}, {arm.name}: {len(lengths[count]):,} questions ...")
                    arm.flush_cache()
                    before = arm.counters()
                    scores[arm.name][run] = ask(
                        new_task(count), arm, limit=limit, concurrency=concurrency, answer_tokens=answer_tokens
                    )
                    parts[arm.name][run] = Participation.count(lengths[count], topk, before, arm.counters())
    console.print(_table(scores))
    report: dict[str, Any] = {
        "eval": "gsm8k",
        "data": str(data) if data is not None else "openai/gsm8k",
        "examples_from": "train" if questions is None else questions.fewshot_split,
        "limit": limit,
        "seed": seed,
        "answer_tokens": answer_tokens,
        "index_topk": topk,
        "scores": {arm: {run: s.figures() for run, s in by_run.items()} for arm, by_run in scores.items()},
    }
    pairs = {}
    if len(scores) == 2:
        both = {run: (scores[BASELINE][run], scores[CANDIDATE][run]) for run in scores[BASELINE]}
        pairs = {f"{run} {m}": (b.right[m], c.right[m]) for run, (b, c) in both.items() for m in METRICS}
        report["same_answers"] = {run: same_answers(b, c) for run, (b, c) in both.items()}
        for run, same in report["same_answers"].items():
            console.print(f"{run}: {same:,} of {len(both[run][0].answers):,} answers are the same text in both arms.")
    finish(console, report, compare(pairs, margin, alpha), parts, output)


def _prompt_tokens(arms: Sequence[GivenServer], texts: list[str], answer_tokens: int) -> list[int]:
    """Length of each prompt in tokens. Raises UsageError if an arm cannot take them."""
    tokens = [arm.tokenize(texts, special=True) for arm in arms]
    require_same_tokens(arms, tokens)
    lengths = [len(ids) for ids in tokens[0]]
    for arm in arms:
        arm.require_room(max(lengths), answer_tokens, "fewer --shots")
    return lengths


def _table(scores: dict[str, dict[str, Scores]]) -> Table:
    shown = Table(title="GSM8K, share right in %, with standard error", title_justify="left")
    for column in ("arm", "run"):
        shown.add_column(column)
    for metric in METRICS:
        shown.add_column(metric, justify="right")
    for arm, by_run in scores.items():
        for name, scored in by_run.items():
            figures = (f"{100 * scored.score[m]:.2f} ± {100 * scored.stderr[m]:.2f}" for m in METRICS)
            shown.add_row(arm, name, *figures)
    return shown


if __name__ == "__main__":
    typer.run(main)
