"""Parity on hardware that rounds: ``python -m evals.gpu_parity --off URL --candidate NAME=URL ...``.

Servers that run already are asked the same prompts, alone, after cached prefixes and concurrently: plain TP twice, tp 1
if it is given, and each candidate. A candidate must not differ from plain TP by more than plain TP differs from itself
and from tp 1 (:mod:`evals.noise`). The proof of correctness is ``python -m evals.parity``, where nothing rounds.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from evals.accuracy import one_sentence
from evals.answers import Answer
from evals.checks import greedy
from evals.given import GivenServer, model_index_topk, require_parent
from evals.noise import Noise, problems
from evals.prompts import random_ids
from evals.server import ServerError
from sglang_cp.errors import UsageError

_PAGE_TOKENS = 64
LENGTHS = "2,3,65,1000,2047,2048,2049,3001,4097,6000,8191,8193,12001,33001"
OFF, AGAIN, TP1 = "off", "off again", "tp 1"
Answers = dict[str, dict[str, list[Answer]]]
"""By server and by way of asking, the answers to the prompts in their order."""


def main(
    off: Annotated[str, typer.Option(help="URL of a server with CP off.")],
    candidate: Annotated[list[str], typer.Option(help="NAME=URL of a server with CP on; several may be given.")],
    tp1: Annotated[str | None, typer.Option("--tp1", help="URL of a server at tp 1, CP off.")] = None,
    lengths: Annotated[str, typer.Option(help="Prompt lengths in tokens.")] = LENGTHS,
    new_tokens: Annotated[int, typer.Option(help="Output tokens of a prompt.", min=1)] = 16,
    concurrency: Annotated[int, typer.Option(help="Requests at a time, where they are asked concurrently.")] = 16,
    index_topk: Annotated[int | None, typer.Option(help="index_topk, by default from config.json.", min=1)] = None,
    vocabulary: Annotated[int, typer.Option(help="Token ids are drawn below it.", min=16)] = 250,
    seed: Annotated[int, typer.Option(help="Of the prompts.")] = 0,
    output: Annotated[Path | None, typer.Option(help="Write the figures as JSON.")] = None,
) -> None:
    """Compare running servers; exit code 1 if a candidate differs by more than plain TP does, 2 for unusable input."""
    console = Console()
    with one_sentence(console), contextlib.ExitStack() as stack:
        require_parent("--output", output)
        urls = {OFF: off, **({TP1: tp1} if tp1 else {}), **_named(candidate)}
        servers = {name: stack.enter_context(contextlib.closing(GivenServer(name, url))) for name, url in urls.items()}
        prompts = random_ids(_lengths(lengths), vocabulary, seed)
        servers[OFF].require_room(max(map(len, prompts)), new_tokens, "shorter --lengths")
        topk = model_index_topk(servers[OFF], index_topk)
        before = {name: server.counters() for name, server in servers.items()}
        answers = _ask_all(servers, prompts, new_tokens, concurrency, console)
        found = [
            f"{name}: no extend was dealt out: CP did not take part."
            for name in _named(candidate)
            if _dealt_out(servers[name].counters()) == _dealt_out(before[name])
        ]
    figures = compare(answers, [len(prompt) for prompt in prompts], topk)
    console.print(_table(figures, topk))
    found += judge(figures, list(_named(candidate)))
    for problem in found:
        console.print(f"[red]{problem}")
    if output is not None:
        rows = {f"{way}, {name}": asdict(noise) for (way, name), noise in figures.items()}
        output.write_text(json.dumps({"figures": rows, "problems": found}, indent=1) + "\n")
    if found:
        raise typer.Exit(1)


Figures = dict[tuple[str, str], Noise]
"""By way of asking with kind of prompt, and server: its difference from plain TP's first answers."""


def compare(answers: Answers, lengths: Sequence[int], index_topk: int) -> Figures:
    """Every server against ``off``, for prompts up to index_topk and beyond it apart."""
    figures: Figures = {}
    for way, reference in answers[OFF].items():
        for kind, chosen in (
            ("<= top-k", [n for n, length in enumerate(lengths) if length <= index_topk]),
            ("> top-k", [n for n, length in enumerate(lengths) if length > index_topk]),
        ):
            for name in answers:
                if name != OFF and chosen:
                    theirs = answers[name][way]
                    noise = Noise.between([reference[n] for n in chosen], [theirs[n] for n in chosen])
                    figures[f"{way} {kind}", name] = noise
    return figures


def judge(figures: Figures, candidates: Sequence[str]) -> list[str]:
    """Sentences on every candidate that differs by more than the servers with CP off do."""
    found = []
    for way in dict.fromkeys(way for way, _ in figures):
        baselines = [figures[way, name] for name in (AGAIN, TP1) if (way, name) in figures]
        for name in candidates:
            found += problems(f"{name}, {way}", baselines, figures[way, name])
    return found


def _ask_all(
    servers: Mapping[str, GivenServer], prompts: list[list[int]], new_tokens: int, concurrency: int, console: Console
) -> Answers:
    asked = {OFF: servers[OFF], AGAIN: servers[OFF], **{name: s for name, s in servers.items() if name != OFF}}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    answers: Answers = {}
    with Progress(*columns, console=console, transient=True) as progress:
        for name, server in asked.items():
            task = progress.add_task(name, total=3 * len(prompts))

            def ask(prompt: list[int], cached: int = 0, server: GivenServer = server, task: Any = task) -> Answer:
                answer = _ask(server, prompt, new_tokens, cached)
                progress.advance(task)
                return answer

            server.flush_cache()
            answers[name] = {"alone": [ask(prompt) for prompt in prompts]}
            server.flush_cache()
            answers[name]["cached prefix"] = [ask(prompt, len(prompt) // 2) for prompt in prompts]
            server.flush_cache()
            with ThreadPoolExecutor(concurrency) as pool:
                answers[name]["concurrent"] = list(pool.map(ask, prompts))
    return answers


def _ask(server: GivenServer, prompt: list[int], new_tokens: int, cached: int) -> Answer:
    """One prompt after its first ``cached`` tokens. Logprobs are of what follows them: SGLang computes anew what it
    must return logprobs of."""
    if cached:
        server.generate(input_ids=prompt[:cached], sampling_params=greedy(1))
    answer = Answer.from_response(
        server.generate(
            input_ids=prompt, sampling_params=greedy(new_tokens), return_logprob=True, logprob_start_len=cached
        )
    )
    if cached >= _PAGE_TOKENS and not answer.cached_tokens:
        raise ServerError(f"{server.name} at {server.url} caches no prefix: start it without --disable-radix-cache.")
    return answer


def _lengths(text: str) -> list[int]:
    try:
        lengths = [int(word) for word in text.split(",")]
    except ValueError:
        lengths = []
    if not lengths or min(lengths) < 1:
        raise UsageError(f"--lengths {text!r} is no list of token numbers: give such as 1,2048,8193.")
    return lengths


def _named(candidates: Sequence[str]) -> dict[str, str]:
    """URLs by name."""
    named: dict[str, str] = {}
    for text in candidates:
        name, separator, url = text.partition("=")
        if not separator or not url.startswith("http") or name in (OFF, AGAIN, TP1, *named):
            raise UsageError(f"--candidate {text!r} is no NAME=URL with a name of its own, as cp=http://HOST:30000.")
        named[name] = url
    return named


def _table(figures: Figures, index_topk: int) -> Table:
    shown = Table(
        title=f"Against CP off (top-k {index_topk:,}): same greedy answers and tokens, nats of input logprobs",
        title_justify="left",
    )
    for column in ("asked", "server", "answers", "tokens", "mean", "p99", "max"):
        justify: Any = "left" if column in ("asked", "server") else "right"
        shown.add_column(column, justify=justify, no_wrap=True)
    for (way, name), noise in figures.items():
        nats = (f"{value:.4f}" for value in (noise.mean_nats, noise.p99_nats, noise.max_nats))
        same = f"{noise.same_answers}/{noise.prompts}"
        shown.add_row(way, name, same, f"{100 * noise.same_tokens:.0f} %", *nats)
    return shown


def _dealt_out(counters: dict[str, int] | None) -> int:
    return counters["cp_extends"] if counters else 0


if __name__ == "__main__":
    typer.run(main)
