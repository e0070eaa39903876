from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sglang_cp import cli
from sglang_cp.errors import PatchStateError, SglangCpError, UsageError


@pytest.mark.parametrize("arguments", [["--help"], ["patch", "--help"], ["patch", "apply", "--help"]])
def test_help_imports_neither_torch_nor_sglang(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        "from sglang_cp.cli import main\n"
        f"sys.argv = ['sglang-cp', *{arguments!r}]\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    code = stop.code\n"
        "heavy = {'torch', 'transformers', 'sglang', 'unidiff'} & set(sys.modules)\n"
        "sys.exit(f'{code} {heavy}' if code or heavy else 0)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert run.returncode == 0, run.stderr
    assert "Usage: sglang-cp" in run.stdout


@pytest.mark.parametrize(("error", "exit_code"), [(UsageError, 2), (PatchStateError, 1), (SglangCpError, 1)])
def test_expected_errors_are_one_line_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: type[SglangCpError],
    exit_code: int,
) -> None:
    def fail() -> None:
        raise error("The cause; the way out.")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == exit_code
    assert capsys.readouterr() == ("", "sglang-cp: The cause; the way out.\n")


def test_unknown_commands_are_unusable_input() -> None:
    command = [sys.executable, "-m", "sglang_cp.cli", "no-such-command"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert run.returncode == 2
    assert "no-such-command" in run.stderr
