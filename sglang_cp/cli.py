"""The console command ``sglang-cp``.

Only registers commands: what they need is imported when they run, so that ``sglang-cp --help`` is quick and
works where SGLang and torch do not.
"""

from __future__ import annotations

import sys

import typer

from sglang_cp.calibration.command import calibrate
from sglang_cp.doctor.command import doctor
from sglang_cp.errors import SglangCpError
from sglang_cp.patching.cli import app as patch_app
from sglang_cp.planner.command import plan
from sglang_cp.tiny_checkpoint.command import tiny_checkpoint

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Interleave prefill context parallelism for DSA models in SGLang.",
)
app.add_typer(patch_app, name="patch")
app.command("calibrate")(calibrate)
app.command("doctor")(doctor)
app.command("plan")(plan)
app.command("tiny-checkpoint")(tiny_checkpoint)


def main() -> None:
    """Run the command; an expected error is one sentence on stderr and an exit code, never a traceback."""
    try:
        app()
    except SglangCpError as error:
        print(f"sglang-cp: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
