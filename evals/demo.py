"""``make demo``: the same real prompts to SGLang with CP off and with CP on, on this machine's CPU.

Ends with exit code 0 only if tokens and logprobs agree and CP took part.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from evals.answers import Answer, compare
from evals.arms import Arm, tiny_model
from evals.checks import greedy
from evals.parity import MAX_LOGPROB_NATS
from evals.prompts import TEXT
from evals.server import Server, ServerError, end_on_sigterm, running

NEW_TOKENS = 8
TP_SIZE = 2
MIN_TOKENS = 512
OFF = Arm("CP off", TP_SIZE, None, chunk=8192)
ON = Arm("CP on", TP_SIZE, "sharded", min_tokens=MIN_TOKENS, chunk=8192)

PROMPTS = ((0, 60), (500, 300), (1500, 900), (3000, 2200))
"""Slices of the text: start and number of characters. The tiny checkpoint's tokenizer makes a token of each byte."""


@dataclass(frozen=True)
class Row:
    """One request, put to both servers."""

    prompt: str
    tokens: int
    rows_per_rank: int
    """Rows that rank 0 computed as its share; 0 where the request ran as plain TP."""
    ttft_off_s: float
    ttft_on_s: float
    tokens_agree: bool
    max_logprob: float

    @property
    def agrees(self) -> bool:
        return self.tokens_agree and self.max_logprob <= MAX_LOGPROB_NATS


def timed(server: Server, prompts: list[str]) -> tuple[list[Answer], float]:
    """Answers to prompts sent as one batch, and seconds until the first token of them all."""
    body = {
        "text": prompts if len(prompts) > 1 else prompts[0],
        "sampling_params": greedy(NEW_TOKENS),
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    server.flush_cache()
    responses, first_s = server.stream(**body)
    return [Answer.from_response(response) for response in responses], first_s


def ask_both(off: Server, on: Server, prompts: list[str], shown: str) -> Row:
    before = on.cp_counters()
    on_answers, ttft_on = timed(on, prompts)
    after = on.cp_counters()
    off_answers, ttft_off = timed(off, prompts)
    differences = [compare(a, b) for a, b in zip(off_answers, on_answers, strict=True)]
    return Row(
        prompt=shown,
        tokens=sum(len(prompt.encode()) for prompt in prompts),
        rows_per_rank=after["cp_local_rows"] - before["cp_local_rows"],
        ttft_off_s=ttft_off,
        ttft_on_s=ttft_on,
        tokens_agree=all(difference.first_token is None for difference in differences),
        max_logprob=max(difference.max_logprob for difference in differences),
    )


def table(rows: list[Row]) -> Table:
    """What a person wants to read."""
    shown = Table(title=f"A tiny random GLM-5.x on the CPU, --tp-size {TP_SIZE}, --cp-min-tokens {MIN_TOKENS}")
    shown.add_column("prompt", max_width=16, no_wrap=True)
    shown.add_column("tokens", justify="right", no_wrap=True)
    shown.add_column("CP on:\nrows", no_wrap=True)
    shown.add_column("TTFT\noff, ms", justify="right", no_wrap=True)
    shown.add_column("TTFT\non, ms", justify="right", no_wrap=True)
    shown.add_column("same\ntokens", no_wrap=True)
    shown.add_column("logprob\ndiff", justify="right", no_wrap=True)
    for row in rows:
        mode = f"{TP_SIZE} x {row.rows_per_rank:,}" if row.rows_per_rank else "plain TP"
        shown.add_row(
            row.prompt,
            f"{row.tokens:,}",
            mode,
            f"{row.ttft_off_s * 1e3:,.0f}",
            f"{row.ttft_on_s * 1e3:,.0f}",
            "[green]yes" if row.tokens_agree else "[red]NO",
            f"{'[green]' if row.max_logprob <= MAX_LOGPROB_NATS else '[red]'}{row.max_logprob:.1e}",
        )
    return shown


def main(
    work_dir: Annotated[Path, typer.Option(help="Where the checkpoint and the server logs go.")] = Path(".work/demo"),
) -> None:
    """Serve a tiny GLM-5.x checkpoint with CP off and on, and compare the answers."""
    end_on_sigterm()
    console = Console()
    work_dir.mkdir(parents=True, exist_ok=True)
    console.print("Making a tiny GLM-5.x checkpoint ...")
    model = tiny_model(work_dir)
    text = TEXT.read_text(encoding="utf-8")
    prompts = [text[start : start + length] for start, length in PROMPTS]
    rows = []
    try:
        with contextlib.ExitStack() as stack:
            console.print("Starting two servers on the CPU: CP off and CP on, about a minute ...")
            with ThreadPoolExecutor(2) as pool:
                specs = [arm.spec(model, "float32") for arm in (OFF, ON)]
                off, on = pool.map(lambda spec: stack.enter_context(running(spec, work_dir)), specs)
            for prompt in prompts:
                console.print(f"Asking both: a prompt of {len(prompt):,} tokens ...")
                rows.append(ask_both(off, on, [prompt], " ".join(prompt.split())))
            console.print("Asking both: all prompts in one batch ...")
            rows.append(ask_both(off, on, prompts, "(all, one batch)"))
    except ServerError as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from error
    console.print(table(rows))
    console.print(
        "The CPU platform computes for correctness, not for speed: the times show that both answer, "
        "not what CP gains on a GPU."
    )
    problems = []
    if not all(row.agrees for row in rows):
        problems.append("The answers differ.")
    if not any(row.rows_per_rank for row in rows):
        problems.append("No prompt was dealt out: CP did not take part.")
    if problems:
        console.print(f"[red]{' '.join(problems)} Logs: {work_dir}")
        raise typer.Exit(1)
    console.print("[green]CP off and CP on agree.")


if __name__ == "__main__":
    typer.run(main)
