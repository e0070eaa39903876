"""Train a small GLM-5.x that really attends: ``python -m evals.train_recall DIRECTORY``.

The checkpoint answers key-value recall (evals.recall_task), learned as evals.recall_training says, and is served like
any `sglang_cp.tiny_checkpoint`; ``python -m evals.recall`` puts the task to running servers. Two recipes: ``full``, up
to 4,096 tokens with 64 keys a query, for a GPU (minutes); ``quick``, up to 256 tokens with 16, for tests on a CPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from evals import recall_curve
from evals.accuracy import one_sentence
from evals.given import require_parent
from evals.recall_model import write_checkpoint
from evals.recall_task import RecallTask
from evals.recall_training import Point, Recipe, Stage, measured, train
from sglang_cp.errors import UsageError
from sglang_cp.tiny_checkpoint.config import TinyConfig

LEAST_RECALL = 0.95

RECIPES = {
    "full": Recipe(
        config=TinyConfig(
            layers=2,
            heads=4,
            q_lora_rank=96,
            v_head_dim=48,
            index_topk=64,
            max_positions=8192,
            dtype="float32",
        ),
        task=RecallTask(),
        attention=(
            Stage(32, 800, 8192),
            Stage(128, 600, 8192),
            Stage(512, 400, 8192),
            Stage(2048, 200, 8192),
            Stage(4096, 200, 8192),
        ),
        indexer=(Stage(256, 300, 4096), Stage(1024, 300, 4096), Stage(4096, 200, 8192)),
        learning_rate=2e-3,
        indexer_learning_rate=2e-3,
        rows=256,
        lengths=(256, 1024, 2048, 4096),
        samples=16,
    ),
    "quick": Recipe(
        config=TinyConfig(
            layers=2,
            heads=4,
            hidden=64,
            q_lora_rank=64,
            v_head_dim=16,
            dense_intermediate=128,
            experts=4,
            expert_intermediate=32,
            index_topk=16,
            max_positions=2048,
            dtype="float32",
        ),
        task=RecallTask(letters=16),
        attention=(Stage(32, 120, 2048), Stage(96, 50, 2048), Stage(256, 50, 2048)),
        indexer=(Stage(256, 80, 512),),
        learning_rate=3e-3,
        indexer_learning_rate=3e-3,
        rows=128,
        lengths=(128, 256),
        samples=16,
    ),
}


def main(
    directory: Annotated[Path, typer.Argument(help="Where the checkpoint goes; must not exist, or be empty.")],
    recipe: Annotated[str, typer.Option(help=f"{' or '.join(RECIPES)}.")] = "full",
    on_device: Annotated[
        str, typer.Option("--device", help="Of torch, such as cuda or cpu; by default a GPU if there is one.")
    ] = "",
    threads: Annotated[
        int | None, typer.Option(help="CPU threads, by default torch's choice; 1 where others use the cores.", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of weights and data.", min=0)] = 0,
    curve: Annotated[Path | None, typer.Option(help="Write loss and recall by step as CSV.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write them as a PNG.")] = None,
) -> None:
    """Train a checkpoint; exit code 1, without one, if its recall stays under 95 %, 2 for unusable input."""
    console = Console()
    with one_sentence(console):
        if recipe not in RECIPES:
            raise UsageError(f"--recipe {recipe} is not known: use {' or '.join(RECIPES)}.")
        require_parent("--curve", curve)
        require_parent("--plot", plot)
        if plot is not None and plot.suffix.lower() != ".png":
            raise UsageError(f"--plot {plot} is no PNG: let its name end in .png.")
        device = _device(on_device)
        _make_room(directory)
    if threads is not None:
        torch.set_num_threads(threads)
    points: list[Point] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("attention", total=RECIPES[recipe].steps)

        def on(point: Point) -> None:
            points.append(point)
            progress.update(task, description=_shown(point), advance=1)

        model = train(RECIPES[recipe], device, seed, on)
        progress.update(task, description="measuring recall", total=None)
        shares = measured(model, RECIPES[recipe], seed)
    if curve is not None:
        recall_curve.write(points, curve)
    if plot is not None:
        recall_curve.draw(points, plot)
    console.print(_table(shares))
    low = [length for length, share in shares.items() if not share["top-k on"] >= LEAST_RECALL]
    if low:
        where = ", ".join(f"{length:,}" for length in low)
        problem = f"Recall stays under {LEAST_RECALL:.0%} at {where} tokens: no checkpoint. Try another --seed."
        console.print(problem, style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1)
    write_checkpoint(model, RECIPES[recipe].config, directory)
    console.print(f"Trained in {points[-1].seconds:.0f} s on {_name(device)}; the checkpoint is {directory}.")


def _shown(point: Point) -> str:
    learned = f"loss {point.loss:.2f}" if point.recall is None else f"recall {point.recall:.0%}"
    return f"{point.stage}: {point.length:,} tokens, {learned}"


def _table(shares: dict[int, dict[str, float]]) -> Table:
    """Recall by length, a column a way of attending."""
    shown = Table(title="values recalled, %", title_justify="left")
    names = list(next(iter(shares.values())))
    for column in ("tokens", *names):
        shown.add_column(column, justify="right")
    for length, by_name in shares.items():
        shown.add_row(f"{length:,}", *(f"{100 * by_name[name]:.1f}" for name in names))
    return shown


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"


def _make_room(directory: Path) -> None:
    """Make the directory's parents. Raises UsageError if it is in use or they cannot be made."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory} is in use: name another directory for the checkpoint.")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{directory} cannot be made ({error.strerror}): name another directory.") from error


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"--device {name} cannot be used: {str(error).splitlines()[0]}") from error
    return device


if __name__ == "__main__":
    typer.run(main)
