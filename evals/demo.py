"""``make demo``: the same real prompts to SGLang with CP off and with CP on, both ways, on this machine's CPU.

Ends with exit code 0 only if tokens and logprobs agree and CP took part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from evals.answers import Answer, compare
from evals.arms import Arm, tiny_model, with_nominal_memory
from evals.checks import MAX_LOGPROB_NATS, greedy
from evals.prompts import TEXT
from evals.server import Server, ServerError, end_on_sigterm, log_folder, running
from sglang_cp.errors import UsageError
from sglang_cp.tiny_checkpoint.config import TinyConfig

NEW_TOKENS = 8
TP_SIZE = 2
MIN_TOKENS = 512
MEMORY_MIB = 512
MODEL = TinyConfig(layers=10, heads=16)
"""Enough layers and heads that replicating their weights shows: a CP extend needs two layers at a time."""
ARMS = (
    Arm("off", TP_SIZE, None, chunk=8192),
    Arm("sharded", TP_SIZE, "sharded", min_tokens=MIN_TOKENS, chunk=8192),
    Arm("replicated", TP_SIZE, "replicated", chunk=8192),
)

PROMPTS = ((0, 60), (500, 300), (1500, 900))
"""Slices of the text: start and number of characters. The tiny checkpoint's tokenizer makes a token of each byte."""


@dataclass(frozen=True)
class Outcome:
    """One request to one arm.

    Attributes:
        rows_per_rank: rows that rank 0 computed as its share; 0 where the request ran as plain TP.
        ttft_s: seconds until the first token.
        same_tokens: greedy tokens equal CP off's.
        max_logprob: largest logprob difference to CP off, nats.
    """

    rows_per_rank: int
    ttft_s: float
    same_tokens: bool
    max_logprob: float

    @property
    def agrees(self) -> bool:
        return self.same_tokens and self.max_logprob <= MAX_LOGPROB_NATS


@dataclass(frozen=True)
class Row:
    """One request, put to every arm: CP off first."""

    prompt: str
    tokens: int
    outcomes: Sequence[Outcome]


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


def ask_all(servers: Sequence[Server], prompts: list[str], shown: str) -> Row:
    """One request to each server in turn, compared with the first server's answers."""
    reference: list[Answer] | None = None
    outcomes = []
    for server in servers:
        before = server.cp_counters()
        answers, ttft_s = timed(server, prompts)
        after = server.cp_counters()
        reference = reference or answers
        differences = [compare(a, b) for a, b in zip(reference, answers, strict=True)]
        outcomes.append(
            Outcome(
                rows_per_rank=after["cp_local_rows"] - before["cp_local_rows"],
                ttft_s=ttft_s,
                same_tokens=all(difference.first_token is None for difference in differences),
                max_logprob=max(difference.max_logprob for difference in differences),
            )
        )
    return Row(shown, sum(len(prompt.encode()) for prompt in prompts), outcomes)


def requests_table(rows: Sequence[Row]) -> Table:
    """What each request did in each arm."""
    shown = Table(title=f"A tiny random GLM-5.x on the CPU, --tp-size {TP_SIZE}, --cp-min-tokens {MIN_TOKENS}")
    shown.add_column("prompt", max_width=14, no_wrap=True)
    shown.add_column("tokens", justify="right", no_wrap=True)
    shown.add_column("CP", no_wrap=True)
    shown.add_column("rows", no_wrap=True)
    shown.add_column("TTFT,\nms", justify="right", no_wrap=True)
    shown.add_column("same\ntokens", no_wrap=True)
    shown.add_column("logprob\ndiff", justify="right", no_wrap=True)
    for row in rows:
        for arm, outcome in zip(ARMS, row.outcomes, strict=True):
            first = arm is ARMS[0]
            shown.add_row(
                row.prompt if first else "",
                f"{row.tokens:,}" if first else "",
                arm.name,
                f"{TP_SIZE} x {outcome.rows_per_rank:,}" if outcome.rows_per_rank else "plain TP",
                f"{outcome.ttft_s * 1e3:,.0f}",
                "" if first else "[green]yes" if outcome.same_tokens else "[red]NO",
                "" if first else f"{'[green]' if outcome.agrees else '[red]'}{outcome.max_logprob:.1e}",
            )
        shown.add_section()
    return shown


def arms_table(servers: Sequence[Server], rows: Sequence[Row]) -> Table:
    """What each arm costs in memory, and whether it answers as CP off."""
    shown = Table(title=f"What CP costs, on ranks of {MEMORY_MIB} MiB")
    for column in ("CP", "weights a rank", "CP buffers", "KV pool", "answers"):
        shown.add_column(column, justify="left" if column == "CP" else "right", no_wrap=True)
    for index, (arm, server) in enumerate(zip(ARMS, servers, strict=True)):
        info = server.info()
        memory = info["internal_states"][0]["sglang_cp_memory"]
        agrees = all(row.outcomes[index].agrees for row in rows)
        shown.add_row(
            arm.name,
            f"{memory['weight_bytes'] / 1e6:.1f} MB",
            f"{memory['buffer_bytes'] / 1e6:.1f} MB",
            f"{info['max_total_num_tokens']:,} tokens",
            "the reference" if index == 0 else "[green]agree" if agrees else "[red]DIFFER",
        )
    return shown


def main(
    work_dir: Annotated[Path, typer.Option(help="Where the checkpoint and the server logs go.")] = Path(".work/demo"),
) -> None:
    """Serve a tiny GLM-5.x checkpoint with CP off, sharded and replicated, and compare the answers."""
    end_on_sigterm()
    console = Console()
    text = TEXT.read_text(encoding="utf-8")
    prompts = [text[start : start + length] for start, length in PROMPTS]
    rows = []
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(log_folder(work_dir, "demo"))
            console.print("Making a tiny GLM-5.x checkpoint ...")
            model = tiny_model(work_dir, MODEL)
            console.print("Starting three servers on the CPU: CP off, sharded, replicated; about two minutes ...")
            with ThreadPoolExecutor(2) as pool:
                specs = [with_nominal_memory(arm.spec(model, "float32"), MEMORY_MIB) for arm in ARMS]
                servers = list(pool.map(lambda spec: stack.enter_context(running(spec, work_dir)), specs))
            for prompt in prompts:
                console.print(f"Asking all: a prompt of {len(prompt):,} tokens ...")
                rows.append(ask_all(servers, [prompt], " ".join(prompt.split())))
            console.print("Asking all: the prompts in one batch ...")
            rows.append(ask_all(servers, prompts, "(all, one batch)"))
            costs = arms_table(servers, rows)
    except (ServerError, UsageError) as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from error
    console.print(requests_table(rows))
    console.print(costs)
    console.print(
        "The CPU platform computes for correctness, not for speed: the times show that all answer, "
        "not what CP gains on a GPU."
    )
    problems = []
    if not all(outcome.agrees for row in rows for outcome in row.outcomes):
        problems.append("The answers differ.")
    if not all(any(row.outcomes[index].rows_per_rank for row in rows) for index in (1, 2)):
        problems.append("No prompt was dealt out: CP did not take part.")
    if problems:
        console.print(f"[red]{' '.join(problems)} Logs: {work_dir}")
        raise typer.Exit(1)
    console.print("[green]CP off, sharded and replicated agree.")


if __name__ == "__main__":
    typer.run(main)
