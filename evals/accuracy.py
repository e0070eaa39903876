"""What the accuracy evaluations share: comparisons of two arms, their tables, and how a run ends."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from evals.given import CANDIDATE, GivenServer
from evals.paired import CONFIDENCE, Paired, Verdict
from evals.participation import Participation, problems, stray
from evals.server import ServerError
from sglang_cp.errors import UsageError

Baseline = Annotated[str | None, typer.Option(help="URL of a running server with CP off.")]
Candidate = Annotated[str | None, typer.Option(help="URL of a running server with CP on.")]
Alpha = Annotated[
    float, typer.Option(help="Chance to call equal arms different, over all comparisons of the run together.")
]
IndexTopk = Annotated[int | None, typer.Option(help="index_topk, by default from the model's config.json.", min=1)]
Concurrency = Annotated[int, typer.Option(help="Requests at a time.", min=1)]
Output = Annotated[Path | None, typer.Option(help="Write the figures as JSON.")]


@dataclass(frozen=True)
class Comparison:
    """One figure of both arms.

    Attributes:
        name: of the figure.
        paired: right and wrong answers.
        margin: difference in share right up to which arms count as equal.
        alpha: p-value under which they count as different.
    """

    name: str
    paired: Paired
    margin: float
    alpha: float

    @property
    def verdict(self) -> Verdict:
        return self.paired.verdict(self.margin, self.alpha)

    def problem(self) -> str | None:
        """One sentence unless the arms are equal."""
        low, high = self.paired.interval()
        if self.verdict == "different":
            return (
                f"{self.name}: the arms differ by {100 * self.paired.difference:+.1f} points "
                f"(McNemar p = {self.paired.p_value:.1e} < {self.alpha:.1e})."
            )
        if self.verdict == "undecided":
            return (
                f"{self.name}: not shown to be equal: the interval of the difference, {100 * low:+.1f} to "
                f"{100 * high:+.1f} points, reaches beyond the margin of {100 * self.margin:.1f}: ask more questions."
            )
        return None

    def as_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "difference": self.paired.difference,
            "confidence": CONFIDENCE,
            "interval": self.paired.interval(),
            "p_value": self.paired.p_value,
            "verdict": self.verdict,
        }


Pairs = Mapping[str, tuple[Sequence[bool], Sequence[bool]]]
"""By figure, right and wrong answers of baseline and candidate."""


def compare(pairs: Pairs, margin: float, alpha: float) -> list[Comparison]:
    """All comparisons of a run; each gets its share of ``alpha`` (Bonferroni)."""
    return [
        Comparison(name, Paired.from_answers(baseline, candidate), margin, alpha / len(pairs))
        for name, (baseline, candidate) in pairs.items()
    ]


def cp_problems(participations: Mapping[str, Mapping[str, Participation]]) -> list[str]:
    """What speaks against the arms' parts. ``participations``: by arm, then by run."""
    return [
        problem
        for arm, runs in participations.items()
        for problem in (problems(runs) if arm == CANDIDATE else stray(runs))
    ]


def require_same_tokens(arms: Sequence[GivenServer], tokens: Sequence[Sequence[Sequence[int]]]) -> None:
    """Refuse arms that tokenize the same texts differently. ``tokens``: by arm."""
    if any(other != tokens[0] for other in tokens[1:]):
        urls = " and ".join(arm.url for arm in arms)
        raise UsageError(f"{urls} tokenize the same text differently: both arms must serve the same model.")


def require_share(option: str, value: float) -> None:
    """Refuse what is no share of 1."""
    if not 0 < value < 1:
        raise UsageError(f"{option} {value} is not a share: give a number between 0 and 1.")


def whole_numbers(option: str, text: str, low: int, high: int | None = None) -> list[int]:
    """Distinct numbers from "1,2,3", smallest first. Raises UsageError for others."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < low or (high is not None and max(numbers) > high):
        allowed = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise UsageError(f"{option} {text} is not understood: give whole numbers {allowed}, separated by commas.")
    return sorted(set(numbers))


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """A row a figure."""
    shown = Table(title="candidate less baseline", title_justify="left")
    for column in ("", "questions", "difference", f"{CONFIDENCE:.0%} interval", "only one right", "McNemar p"):
        shown.add_column(column, justify="right" if column else "left", no_wrap=True)
    shown.add_column("verdict")
    for comparison in comparisons:
        paired = comparison.paired
        low, high = paired.interval()
        shown.add_row(
            comparison.name,
            f"{paired.questions:,}",
            f"{100 * paired.difference:+.2f}",
            f"{100 * low:+.2f} to {100 * high:+.2f}",
            f"{paired.baseline_only} / {paired.candidate_only}",
            f"{paired.p_value:.2g}",
            f"[{'green' if comparison.verdict == 'equal' else 'red'}]{comparison.verdict}",
        )
    return shown


def participation_table(participations: Mapping[str, Mapping[str, Participation]]) -> Table:
    """What CP did, a row an arm and run."""
    shown = Table(title="CP's part", title_justify="left")
    for column in ("arm", "run"):
        shown.add_column(column)
    for column in ("prompts", "over index_topk", "CP extends", "rows", "rows > top-k"):
        shown.add_column(column, justify="right")
    for arm, runs in participations.items():
        for name, run in runs.items():
            counters = [f"{run.counter(c):,}" for c in ("cp_extends", "cp_rows", "cp_rows_over_topk")]
            counters = ["none"] * 3 if run.counters is None else counters
            shown.add_row(arm, name, f"{run.prompts:,}", f"{run.share_over_topk:.0%}", *counters)
    return shown


@contextmanager
def one_sentence(console: Console) -> Iterator[None]:
    """End with exit code 2 and one sentence where the input or a server cannot be used."""
    try:
        yield
    except (UsageError, ServerError) as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(2) from error


def finish(
    console: Console,
    report: Mapping[str, Any],
    comparisons: Sequence[Comparison],
    participations: Mapping[str, Mapping[str, Participation]],
    output: Path | None,
) -> None:
    """Show and write what came out; exit code 1 if the arms are not equal or CP took no part.

    ``report``: the evaluation's own figures, to which those of the comparison and of CP are added.
    """
    found = [*cp_problems(participations), *filter(None, (comparison.problem() for comparison in comparisons))]
    console.print(participation_table(participations))
    if comparisons:
        console.print(comparison_table(comparisons))
    for comparison in comparisons:
        if comparison.paired.neither == comparison.paired.questions:
            console.print(f"[yellow]{comparison.name}: neither arm got any right, so equal scores say little.")
    for problem in found:
        console.print(problem, style="red", markup=False, soft_wrap=True)
    if output is not None:
        added = {
            "participation": {arm: {n: run.as_dict() for n, run in r.items()} for arm, r in participations.items()},
            "comparisons": [comparison.as_dict() for comparison in comparisons],
            "problems": found,
        }
        output.write_text(json.dumps({**report, **added}, indent=1) + "\n")
    if found:
        raise typer.Exit(1)
    if comparisons:
        margin = 100 * comparisons[0].margin
        console.print(f"[green]The arms are equal within {margin:.1f} points, and CP took part in every run.")
