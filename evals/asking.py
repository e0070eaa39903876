"""Puts prompts to running servers, length by length, so that CP's part is known of each length."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from evals.checks import greedy
from evals.given import GivenServer
from evals.participation import Participation
from evals.server import Server

Prompts = Mapping[int, Sequence[list[int]]]
"""By length in tokens, token ids."""
Texts = dict[str, dict[int, list[str]]]
"""By arm and length in tokens, what was answered, in the order of the prompts."""
Parts = dict[str, dict[str, Participation]]
"""By arm and length in words, what CP did."""


def ask_by_length(
    arms: Sequence[GivenServer],
    prompts: Prompts,
    *,
    answer_tokens: int,
    index_topk: int,
    concurrency: int,
    console: Console,
) -> tuple[Texts, Parts]:
    """Ask every arm, with an empty radix cache at each length: a cached prompt would not be dealt out."""
    texts: Texts = {arm.name: {} for arm in arms}
    parts: Parts = {arm.name: {} for arm in arms}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        for length, asked in prompts.items():
            for arm in arms:
                arm.flush_cache()
                before = arm.counters()
                task = progress.add_task(f"{arm.name}: {length:,} tokens", total=len(asked))
                texts[arm.name][length] = _ask(arm, asked, answer_tokens, concurrency, partial(progress.advance, task))
                part = Participation.count([length] * len(asked), index_topk, before, arm.counters())
                parts[arm.name][f"{length:,} tokens"] = part
    return texts, parts


def _ask(
    server: Server, prompts: Sequence[list[int]], answer_tokens: int, concurrency: int, advance: Callable[[], None]
) -> list[str]:
    """A server's greedy answer of ``answer_tokens`` tokens to each prompt; ``advance`` is called after each."""

    def one(prompt: list[int]) -> str:
        text: str = server.generate(input_ids=prompt, sampling_params=greedy(answer_tokens))["text"]
        advance()
        return text

    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(one, prompts))
