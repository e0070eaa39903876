"""The figures of runs as a table in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evals.fuzz.results import Played, read_played, read_settings, totals, unproved

_COLUMNS = ("streams", "requests", "aborted", "tokens compared", "logprobs compared", "largest difference, nats",
            "retractions", "CP extends", "CP rows", "rows over top-k", "failures")  # fmt: skip


def report(paths: Sequence[Path]) -> str:
    """Markdown for the runs in ``paths``. Raises UsageError where one is none."""
    settings = [read_settings(path) for path in paths]
    runs = [read_played(path) for path in paths]
    lines = [line for run in runs for line in run]
    rows = [_row(arm, total, lines) for arm, total in totals(lines).items()]
    if lines:
        every = [line.model_copy(update={"arm": "all"}) for line in lines]
        rows.append(_row("all", totals(every)["all"], every))
    streams = {(of.seed, line.index) for of, run in zip(settings, runs, strict=True) for line in run}
    seeds = sorted({of.seed for of in settings})
    said = [
        f"| arm | {' | '.join(_COLUMNS)} |",
        "|---|" + "---:|" * len(_COLUMNS),
        *rows,
        "",
        f"Seeds {', '.join(map(str, seeds))}; {len(streams):,} different streams; model "
        f"{', '.join(sorted({of.model for of in settings}))}; tolerance "
        f"{', '.join(sorted({f'{of.tolerance:.0e}' for of in settings}))} nats.",
        *unproved(lines),
    ]
    return "\n".join(said)


def _row(name: str, total: Played, lines: Sequence[Played]) -> str:
    counts = (total.index, total.requests, total.aborted, total.tokens, total.logprobs)
    failures = sum(line.failed for line in lines if line.arm == total.arm)
    after = (total.retractions, total.cp_extends, total.cp_rows, total.cp_rows_over_topk, failures)
    cells = [*(f"{count:,}" for count in counts), f"{total.max_gap:.1e}", *(f"{count:,}" for count in after)]
    return f"| {name} | {' | '.join(cells)} |"
