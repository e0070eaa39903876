"""CP extends under NVIDIA's compute-sanitizer: ``python -m evals.memcheck --model-path DIR -- SERVER ARGUMENTS``.

Starts a CP server whose ranks run under ``compute-sanitizer --tool memcheck``, without graphs, asks it a few prompts
that are dealt out, lets the ranks end of their own accord, and reads what the sanitizer says of each. Exit code 1 if it
found an invalid access or a rank went unchecked, 2 for unusable input.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from evals import memcheck_ranks
from evals.accuracy import one_sentence, whole_numbers
from evals.checks import greedy
from evals.plugins import with_plugin
from evals.prompts import random_ids
from evals.server import Server, ServerSpec, end_on_sigterm, log_folder, running
from sglang_cp.errors import UsageError

_CP = ("--enable-prefill-cp", "--cp-strategy", "interleave", "--cp-min-tokens", "2")
_PLAIN = ("--disable-cuda-graph", "--skip-server-warmup", "--watchdog-timeout", "3600")
_END_S = 90.0
_SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error")


def main(
    model_path: Annotated[Path, typer.Option(help="Checkpoint to serve: a small one.")],
    tp_size: Annotated[int, typer.Option(help="Ranks.", min=2)] = 2,
    lengths: Annotated[str, typer.Option(help="Prompt lengths in tokens.")] = "67,2301",
    vocabulary: Annotated[int, typer.Option(help="Token ids are drawn below it.", min=16)] = 250,
    sanitizer: Annotated[str, typer.Option(help="The program.")] = "compute-sanitizer",
    output: Annotated[Path | None, typer.Option(help="Folder for all logs; by default a temporary one.")] = None,
    server_args: Annotated[
        list[str] | None, typer.Argument(help="After --: more arguments of the server.", metavar="[-- ARGS]")
    ] = None,
) -> None:
    """Run CP extends under memcheck."""
    end_on_sigterm()
    console = Console()
    with one_sentence(console), contextlib.ExitStack() as stack:
        prompts = whole_numbers("--lengths", lengths, 1)
        if not (model_path / "config.json").is_file():
            raise UsageError(f"--model-path {model_path} holds no model (no config.json).")
        program = shutil.which(sanitizer)
        if program is None:
            raise UsageError(f"--sanitizer {sanitizer} is not a program here: it comes with the CUDA toolkit.")
        if output is not None and (_summed_up(output) or (output / memcheck_ranks.END).exists()):
            raise UsageError(f"--output {output} holds an earlier run's files, which would count: name another folder.")
        folder = stack.enter_context(log_folder(output, "memcheck"))
        arguments = ["--tp-size", str(tp_size), *_CP, *_PLAIN, *(server_args or ())]
        spec = ServerSpec("server", model_path, arguments)
        wrapper = _wrapper(program, folder)
        spec = with_plugin(spec, memcheck_ranks, folder / "plugin", **{memcheck_ranks.VARIABLE: str(wrapper)})
        with running(spec, folder) as server:
            counters = _ask(server, prompts, vocabulary)
            found = _end_processes(server, folder, tp_size)
        wrong = problems(found, counters, tp_size)
        console.print(f"{counters['cp_extends']} CP extends of {counters['cp_rows']} rows.")
        for name, text in found.items():
            console.print(f"{name}: {_SUMMARY.findall(text)[-1]} errors", markup=False)
            for line in _invalid(text)[:20]:
                console.print(line, markup=False)
        for sentence in wrong:
            console.print(sentence, style="red", markup=False, soft_wrap=True)
    if wrong:
        raise typer.Exit(1)


def problems(found: dict[str, str], counters: dict[str, int], tp_size: int) -> list[str]:
    """What is wrong, each one sentence. ``found``: by log, what the sanitizer said of a process that used CUDA."""
    wrong = []
    if not counters["cp_extends"]:
        wrong.append("No extend was dealt out: CP did not take part.")
    if len(found) < tp_size:
        wrong.append(f"The sanitizer summed up {len(found)} of {tp_size} ranks.")
    if errors := sum(int(_SUMMARY.findall(text)[-1]) for text in found.values()):
        wrong.append(f"The sanitizer found {errors} errors.")
    return wrong


def _wrapper(program: str, folder: Path) -> Path:
    """A program that runs Python under the sanitizer."""
    options = ("--tool", "memcheck", "--report-api-errors", "no", "--target-processes", "application-only")
    log = shlex.quote(f"{folder.resolve()}/memcheck-") + "$$.log"
    command = f"{shlex.join([program, *options])} --log-file {log} {shlex.quote(sys.executable)}"
    wrapper = folder / "python-under-memcheck"
    wrapper.write_text(f'#!/bin/bash\nexec {command} "$@"\n')
    wrapper.chmod(0o755)
    return wrapper.resolve()


def _ask(server: Server, lengths: Sequence[int], vocabulary: int) -> dict[str, int]:
    """Ask prompts of random tokens; the server's CP counters."""
    for prompt in random_ids(lengths, vocabulary, seed=0):
        server.generate(input_ids=prompt, sampling_params=greedy(3))
    return server.cp_counters()


def _end_processes(server: Server, folder: Path, tp_size: int) -> dict[str, str]:
    """Let all processes but the leading one end; by name, the logs in which the sanitizer summed up."""
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)  # it would kill the others when it sees one end
    (folder / memcheck_ranks.END).touch()
    deadline = time.monotonic() + _END_S
    while len(found := _summed_up(folder)) < tp_size and time.monotonic() < deadline:
        time.sleep(0.5)
    return found


def _summed_up(folder: Path) -> dict[str, str]:
    texts = {path.name: path.read_text(errors="replace") for path in sorted(folder.glob("memcheck-*.log"))}
    return {name: text for name, text in texts.items() if _SUMMARY.search(text)}


def _invalid(text: str) -> list[str]:
    return [line for line in text.splitlines() if "Invalid" in line or "Program hit" in line]


if __name__ == "__main__":
    typer.run(main)
