"""Running an accuracy evaluation as a user does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner


@dataclass(frozen=True)
class Outcome:
    """How a command ended, what it said (with single spaces), and its report if it wrote one."""

    exit_code: int
    said: str
    report: dict[str, Any] | None


def run(command: Callable[..., None], arguments: list[str], folder: Path) -> Outcome:
    """Run with --output in ``folder``, unless ``arguments`` has it."""
    output = folder / "report.json"
    app = typer.Typer()
    app.command()(command)
    given = arguments if "--output" in arguments else [*arguments, "--output", str(output)]
    result = CliRunner().invoke(app, given, env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    report = json.loads(output.read_text()) if output.exists() else None
    return Outcome(result.exit_code, " ".join(result.output.split()), report)
