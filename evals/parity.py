"""Parity of CP with plain SGLang: ``python -m evals.parity``.

The reference is plain SGLang at tp 1 with CP off. Each arm gets the same prompts alone, in one batch, after a cached
prefix and concurrently; greedy tokens and logprobs are compared. On the CPU reference platform, whose products are
accumulated in float64, an arm must give the same tokens, and the same logprobs but for the last bit.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from evals.accuracy import one_sentence
from evals.arms import ARMS, Arm, reference_spec, tiny_model
from evals.checks import MAX_LOGPROB_NATS, CheckResult, Reference, run_checks
from evals.given import require_parent
from evals.prompts import tokenize
from evals.server import Server, end_on_sigterm, log_folder, running
from sglang_cp.doctor.model_config import read_config
from sglang_cp.errors import UsageError
from sglang_cp.tiny_checkpoint.config import TinyConfig

DTYPES = {"exact": "float32", "faithful": "bfloat16"}


@dataclass(frozen=True)
class ArmResult:
    """What an arm did: its checks, and its CP counters over them."""

    arm: str
    checks: list[CheckResult]
    counters: dict[str, int]
    problems: list[str]


def judge(
    name: str, checks: list[CheckResult], counters: dict[str, int], *, expect_cp: bool, tolerance: float
) -> ArmResult:
    """Turn figures into problems, each one sentence."""
    problems = []
    for check in checks:
        if check.differing:
            problems.append(f"{check.name}: greedy tokens differ for prompts of {list(check.differing)} tokens.")
        if not check.max_logprob <= tolerance:  # NaN is a problem too
            problems.append(f"{check.name}: a logprob differs by {check.max_logprob:.1e} > {tolerance:.0e} nats.")
    if expect_cp and not counters["cp_extends"]:
        problems.append("No extend was dealt out: CP did not take part.")
    if expect_cp and not counters["cp_rows_over_topk"]:
        problems.append("Top-k dropped no key: the prompts are too short for the checkpoint's index_topk.")
    if not expect_cp and counters["cp_extends"]:
        problems.append("CP is off, yet extends were dealt out.")
    return ArmResult(name, checks, counters, problems)


def check_server(
    reference: Reference, candidate: Server, tokens: list[int], *, expect_cp: bool, tolerance: float, progress: Progress
) -> ArmResult:
    """Run all checks against one running server."""
    task = progress.add_task(candidate.name, total=None)

    def on(what: str, done: int, total: int) -> None:
        progress.update(task, description=what, completed=done, total=total)

    before = candidate.cp_counters()
    checks = run_checks(reference, candidate, tokens, on=on)
    after = candidate.cp_counters()
    progress.remove_task(task)
    counters = {name: after[name] - before[name] for name in after}
    return judge(candidate.name, checks, counters, expect_cp=expect_cp, tolerance=tolerance)


def table(results: list[ArmResult], title: str) -> Table:
    """The figures, a row an arm."""
    shown = Table(title=title, title_justify="left")
    for column in ("arm", "answers", "tokens differ", "max logprob diff (nats)", "CP extends", "rows", "rows > top-k"):
        shown.add_column(column, justify="left" if column == "arm" else "right")
    shown.add_column("verdict")
    for result in results:
        counters = result.counters
        shown.add_row(
            result.arm,
            str(sum(check.answers for check in result.checks)),
            str(sum(len(check.differing) for check in result.checks)),
            f"{max(check.max_logprob for check in result.checks):.1e}",
            *(f"{counters[name]:,}" for name in ("cp_extends", "cp_rows", "cp_rows_over_topk")),
            "[red]differs" if result.problems else "[green]agrees",
        )
    return shown


def main(
    model: Annotated[Path | None, typer.Option(help="Checkpoint to serve; by default a new tiny one.")] = None,
    mode: Annotated[str, typer.Option(help="exact, faithful or both: how the CPU platform stores KV.")] = "both",
    arm: Annotated[
        list[str] | None, typer.Option(help=f"Arms, of {', '.join(arm.name for arm in ARMS)}; by default all.")
    ] = None,
    speculative: Annotated[
        bool, typer.Option("--speculative", help="Let the arms draft with the checkpoint's NextN layer (EAGLE).")
    ] = False,
    reference: Annotated[str | None, typer.Option(help="URL of a running reference server.")] = None,
    candidate: Annotated[str | None, typer.Option(help="URL of a running candidate, with --reference.")] = None,
    tolerance: Annotated[float, typer.Option(help="Largest logprob difference, nats.")] = MAX_LOGPROB_NATS,
    output: Annotated[Path | None, typer.Option(help="Write the figures as JSON.")] = None,
    log_dir: Annotated[Path | None, typer.Option(help="Where server logs go; by default a temporary folder.")] = None,
) -> None:
    """Compare CP with plain SGLang; exit code 1 if an arm differs, 2 for unusable input."""
    end_on_sigterm()
    console = Console()
    with one_sentence(Console(stderr=True)):
        arms = _chosen(arm)
        if mode not in (*DTYPES, "both"):
            raise UsageError(f"--mode {mode} is not known: use exact, faithful or both.")
        if (reference is None) != (candidate is None):
            raise UsageError(
                "--reference and --candidate go together: give both URLs, or neither to start servers here."
            )
        if model is not None and not (model / "config.json").is_file():
            raise UsageError(f"{model} holds no model (no config.json).")
        if speculative:
            if model is not None and not _has_nextn(model):
                raise UsageError(
                    f"--speculative needs a NextN layer, which {model} lacks (num_nextn_predict_layers): leave it off."
                )
            arms = [replace(arm, name=f"{arm.name}-nextn", drafts=True, mixed=False) for arm in arms]
        if not tolerance >= 0:
            raise UsageError(f"--tolerance {tolerance} is not a difference: give a number of nats of at least 0.")
        require_parent("--output", output)
    results: dict[str, list[ArmResult]] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    shown = Progress(*columns, console=console, transient=True)
    with one_sentence(console), shown as progress, log_folder(log_dir, "parity") as logs:
        if reference is not None and candidate is not None:
            results["given"] = _given(reference, candidate, tolerance, progress)
        else:
            checkpoint = model or tiny_model(logs, TinyConfig(nextn=speculative))
            for name in DTYPES if mode == "both" else [mode]:
                results[name] = _started(checkpoint, DTYPES[name], arms, logs, tolerance, progress)
    for name, arm_results in results.items():
        console.print(table(arm_results, f"{name}: against plain SGLang, tp 1, CP off"))
        for result in arm_results:
            for problem in result.problems:
                console.print(f"[red]{result.arm}: {problem}")
    if output:
        output.write_text(json.dumps({name: [asdict(r) for r in rs] for name, rs in results.items()}, indent=1))
    if any(result.problems for arm_results in results.values() for result in arm_results):
        raise typer.Exit(1)


def _started(
    model: Path, dtype: str, arms: list[Arm], logs: Path, tolerance: float, progress: Progress
) -> list[ArmResult]:
    """Start the reference, then one arm after the other: two servers at a time."""
    tokens = tokenize(str(model))
    results = []
    with running(reference_spec(model, dtype), logs) as server:
        reference = Reference(server)
        for arm in arms:
            waiting = progress.add_task(f"starting {arm.name}", total=None)
            with running(arm.spec(model, dtype), logs) as candidate:
                progress.remove_task(waiting)
                results.append(
                    check_server(
                        reference,
                        candidate,
                        tokens,
                        expect_cp=arm.cp_weights is not None,
                        tolerance=tolerance,
                        progress=progress,
                    )
                )
    return results


def _given(reference_url: str, candidate_url: str, tolerance: float, progress: Progress) -> list[ArmResult]:
    reference, candidate = Server("reference", reference_url), Server("candidate", candidate_url)
    info = candidate.info()
    tokens = tokenize(info["tokenizer_path"] or info["model_path"])
    return [
        check_server(
            Reference(reference),
            candidate,
            tokens,
            expect_cp=bool(info["enable_prefill_cp"]),
            tolerance=tolerance,
            progress=progress,
        )
    ]


def _chosen(names: list[str] | None) -> list[Arm]:
    by_name = {arm.name: arm for arm in ARMS}
    unknown = [name for name in names or [] if name not in by_name]
    if unknown:
        raise UsageError(f"--arm {unknown[0]} is not known: use one of {', '.join(by_name)}.")
    return [by_name[name] for name in names] if names else list(ARMS)


def _has_nextn(model: Path) -> bool:
    return bool(read_config(model).get("num_nextn_predict_layers"))


if __name__ == "__main__":
    typer.run(main)
