"""Throughput of CP against unpatched SGLang, side by side: ``python -m evals.throughput``.

Starts one server after the other, the arms of `evals.throughput_arms`, and puts the same prompts to each with SGLang's
own client (``python -m sglang.bench_serving``): prompts of exactly so many random tokens, a fixed seed, a flushed cache
before each point. Results go to a file line by line; a run that was cut off goes on where it was. The tables and two
plots are made from the file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from evals import throughput_plots as plots
from evals.accuracy import one_sentence, whole_numbers
from evals.arms import tiny_model
from evals.given import require_parent
from evals.server import end_on_sigterm
from evals.throughput_arms import ARMS, Launch, ThroughputArm
from evals.throughput_bench import require_client
from evals.throughput_goals import Figures, judgements
from evals.throughput_machine import describe
from evals.throughput_report import as_markdown, goals_table, latency_table, memory_table, throughput_table
from evals.throughput_results import ResultsFile, Setup
from evals.throughput_run import FULL, ON_CPU, SMOKE, Load, run
from sglang_cp.cost.files import write_whole
from sglang_cp.errors import PatchStateError, UsageError
from sglang_cp.patching import tool, verify_applied
from sglang_cp.patching.series import read_series
from sglang_cp.patching.state import State
from sglang_cp.patching.tree import open_tree
from sglang_cp.pin import read_pin, series_dir

DEVICES = ("gpu", "cpu")


def main(
    model_path: Annotated[
        Path | None, typer.Option(help="Checkpoint to serve; with --device cpu by default a new tiny one.")
    ] = None,
    tp_size: Annotated[int, typer.Option(help="Ranks.", min=1)] = 2,
    output: Annotated[
        Path, typer.Option(help="Results; tables and plots go beside: NAME.md, NAME-ratios.png, NAME-frontier.png.")
    ] = Path("throughput.jsonl"),
    arm: Annotated[list[str] | None, typer.Option(help=f"Arms, of {', '.join(ARMS)}; by default all.")] = None,
    unpatched_path: Annotated[
        Path | None, typer.Option(help="Directory with upstream's own package sglang, for the unpatched arms.")
    ] = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="A few short points.")] = False,
    device: Annotated[str, typer.Option(help="gpu, or cpu: the CPU reference platform, tiny sizes.")] = "gpu",
    lengths: Annotated[str | None, typer.Option(help="Prompt tokens, such as 1024,4096.")] = None,
    concurrency: Annotated[str | None, typer.Option(help="Requests at a time, such as 1,4.")] = None,
    output_len: Annotated[int | None, typer.Option(help="Output tokens of each request.", min=2)] = None,
    rounds: Annotated[int | None, typer.Option(help="Requests of a point over its concurrency.", min=1)] = None,
    cp_min_tokens: Annotated[int | None, typer.Option(help="Threshold of the arm sharded.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Of the prompts.", min=0)] = 0,
    draw: Annotated[bool, typer.Option("--plots/--no-plots", help="Draw the two plots.")] = True,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Measure nothing: report what is in --output.")
    ] = False,
    log_dir: Annotated[
        Path | None, typer.Option(help="Where logs go, and a tiny checkpoint; by default NAME-logs beside the results.")
    ] = None,
    server_args: Annotated[
        list[str] | None, typer.Argument(help="After --: more arguments of every server.", metavar="[-- ARGS]")
    ] = None,
) -> None:
    """Measure the arms; exit code 1 if a point failed or a goal was missed, 2 for unusable input."""
    end_on_sigterm()
    console = Console()
    with one_sentence(console):
        require_parent("--output", output)
        if draw:
            plots.require_matplotlib()
        file = ResultsFile(output)
        problems = []
        if not report_only:
            load = _load(device, smoke, lengths, concurrency, output_len, rounds, cp_min_tokens)
            arms = _arms(arm, unpatched_path, console)
            require_client()
            logs = log_dir or output.with_name(f"{output.stem}-logs")
            model = _model(model_path, device, logs)
            launch = Launch(model, tp_size, device == "cpu", unpatched_path, load.min_tokens, tuple(server_args or ()))
            with file.writing(_setup(launch, load, seed, device)):
                problems += run(launch, {a: load.points(a, seed) for a in arms}, file, logs, console)
        elif file.setup is None:
            raise UsageError(f"{output} holds no results: name another --output, or measure without --report-only.")
    if file.setup is not None and file.measurements:
        problems += report(file, file.setup, console, draw=draw)
    for problem in problems:
        console.print(problem, style="red", markup=False, soft_wrap=True)
    if problems:
        raise typer.Exit(1)


def report(file: ResultsFile, setup: Setup, console: Console, *, draw: bool) -> list[str]:
    """Show the tables and write them, and the plots, beside the results: a sentence for each thing that is wrong."""
    figures = Figures(file.measurements)
    judged = judgements(figures) if setup.device == "gpu" else []
    tables = [throughput_table(figures, setup), latency_table(figures), memory_table(figures)]
    tables += [goals_table(judged)] if judged else []
    for table in tables:
        console.print(table)
    if not judged:
        console.print("The CPU platform computes for correctness, not for speed: goals are for GPUs.")
    write_whole(file.path.with_suffix(".md"), as_markdown(tables, figures, setup).encode())
    if draw:
        for name, figure in (("ratios", plots.ratios(figures, setup)), ("frontier", plots.frontier(figures, setup))):
            if figure is not None:
                plots.write(figure, file.path.with_name(f"{file.path.stem}-{name}.png"))
    wrong = [m.problem for m in file.measurements if m.problem]
    return wrong + [f"{j.arm} missed: {j.goal.text}." for j in judged if j.verdict == "missed"]


def _load(
    device: str,
    smoke: bool,
    lengths: str | None,
    concurrency: str | None,
    output_tokens: int | None,
    rounds: int | None,
    min_tokens: int | None,
) -> Load:
    """A preset, and what was given in place of its parts."""
    if device not in DEVICES:
        raise UsageError(f"--device {device} is not known: use {' or '.join(DEVICES)}.")
    preset = ON_CPU if device == "cpu" else SMOKE if smoke else FULL
    given = {
        "lengths": None if lengths is None else whole_numbers("--lengths", lengths, 1),
        "concurrency": None if concurrency is None else whole_numbers("--concurrency", concurrency, 1),
        "output_tokens": output_tokens,
        "rounds": rounds,
        "min_tokens": min_tokens,
    }
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return replace(preset, **changes)


def _arms(names: Sequence[str] | None, unpatched: Path | None, console: Console) -> list[ThroughputArm]:
    """The arms asked for, in their order, without the unpatched ones where there is no tree for them.

    Raises UsageError for unknown names and for trees that are not what their arms need.
    """
    unknown = [name for name in names or () if name not in ARMS]
    if unknown:
        raise UsageError(f"--arm {unknown[0]} is not known: use one of {', '.join(ARMS)}.")
    arms = [arm for arm in ARMS.values() if not names or arm.name in names]
    if unpatched is None and any(arm.unpatched for arm in arms):
        arms = [arm for arm in arms if not arm.unpatched]
        if not arms:
            raise UsageError(
                "The unpatched arms need upstream's own package: name its directory with --unpatched-path."
            )
        console.print("[yellow]Without --unpatched-path the unpatched arms are skipped, and no goal can be judged.")
    try:
        if any(arm.unpatched for arm in arms):
            _require_unpatched(unpatched)
        if any(arm.cp_args and not arm.unpatched for arm in arms):
            verify_applied()
    except PatchStateError as error:
        raise UsageError(str(error)) from error
    return arms


def _require_unpatched(path: Path | None) -> None:
    release = read_pin().release
    found = tool.status(open_tree(path), read_series(series_dir(release), release))
    if found.state is State.EDITED:
        raise PatchStateError(found.sentence())
    if found.state is not State.NOT_APPLIED:
        raise UsageError(
            f"--unpatched-path {path} holds a patched SGLang: name a copy after `sglang-cp patch revert --root {path}`."
        )


def _model(path: Path | None, device: str, logs: Path) -> Path:
    """The checkpoint to serve; a tiny one is made in ``logs`` where none is given and a CPU will do."""
    if path is None and device != "cpu":
        raise UsageError("--model-path is missing: name the checkpoint to serve.")
    if path is not None:
        for name, what in (("config.json", "model"), ("tokenizer_config.json", "tokenizer, which the benchmark needs")):
            if not (path / name).is_file():
                raise UsageError(f"--model-path {path} holds no {what} (no {name}).")
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{logs} cannot be made ({error.strerror}): name another --log-dir.") from error
    return path or tiny_model(logs)


def _setup(launch: Launch, load: Load, seed: int, device: str) -> Setup:
    versions, machine = describe()
    try:
        config = json.loads((launch.model / "config.json").read_text())
    except ValueError as error:
        raise UsageError(f"{launch.model / 'config.json'} is no JSON ({error}).") from error
    return Setup(
        model=config,
        tp_size=launch.tp_size,
        device=device,
        output_tokens=load.output_tokens,
        seed=seed,
        rounds=load.rounds,
        least_prompts=load.least_prompts,
        min_tokens=load.min_tokens,
        server_args=list(launch.server_args),
        versions=versions,
        machine=machine,
    )


if __name__ == "__main__":
    typer.run(main)
