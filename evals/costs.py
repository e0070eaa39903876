"""What CP costs a server while it is not used: ``python -m evals.costs``.

Starts SGLang with CP off, with attention weights sharded and replicated, on CPU ranks of a nominal memory, and prints
for each: weight bytes, buffers, KV pool, what one decode step executes, and the peak memory of one extend.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from evals import recorder
from evals.arms import Arm, tiny_model, with_nominal_memory
from evals.checks import greedy
from evals.plugins import with_plugin
from evals.prompts import tokenize
from evals.server import ServerError, end_on_sigterm, running
from sglang_cp.tiny_checkpoint.config import TinyConfig

MODEL = TinyConfig(layers=6, heads=32)
"""More heads than the usual tiny model, so that attention weights are many pages of KV pool."""
TP_SIZE = 2
PROMPT_TOKENS = 600
PAGE_TOKENS = 64
MEMORY_MIB = 300
"""Of each rank. The pools' sizes must not be sizes of anything else, so that a trace's dimensions can be told apart."""
ARMS = (
    Arm("CP off", TP_SIZE, None, chunk=8192),
    Arm("sharded", TP_SIZE, "sharded", shard_source="symmetric-memory", chunk=8192),
    Arm("replicated", TP_SIZE, "replicated", chunk=8192),
)


@dataclass(frozen=True)
class Costs:
    """One server's figures, of rank 0 unless said otherwise.

    Attributes:
        weight_bytes: the model's weights.
        buffer_bytes: what CP adds for gathered weights.
        pool_tokens: ``max_total_num_tokens``, which fits on every rank.
        decode_calls: operators of one decode step, by rank.
        extend_peak_bytes: most memory that the tensors of one extend of PROMPT_TOKENS occupied, beyond weights, pool
            and buffers.
    """

    name: str
    weight_bytes: int
    buffer_bytes: int
    pool_tokens: int
    decode_calls: Sequence[Sequence[str]]
    extend_peak_bytes: int

    @property
    def decode_collectives(self) -> int:
        """Collectives of a decode step."""
        return sum("c10d" in call or "reg_all" in call or "reg_reduce" in call for call in self.decode_calls[0])


def measure(arm: Arm, model: Path, folder: Path) -> Costs:
    """Start ``arm``, send one prompt, read what its ranks recorded."""
    records = folder / f"records-{arm.name.replace(' ', '-')}"
    records.mkdir()
    spec = with_nominal_memory(arm.spec(model, "float32"), MEMORY_MIB)
    spec = with_plugin(spec, recorder, folder / "site", **{recorder.FOLDER_VARIABLE: str(records)})
    with running(spec, folder) as server:
        ids = tokenize(str(model))[:PROMPT_TOKENS]
        server.flush_cache()
        server.generate(input_ids=ids, sampling_params=greedy(3))
        info = server.info()
    ranks = [_read(records / f"rank{rank}.jsonl") for rank in range(arm.tp_size)]
    memory = info["internal_states"][0]["sglang_cp_memory"]
    return Costs(
        name=arm.name,
        weight_bytes=memory["weight_bytes"],
        buffer_bytes=memory["buffer_bytes"],
        pool_tokens=info["max_total_num_tokens"],
        decode_calls=[_decode_calls(rank, info["max_total_num_tokens"]) for rank in ranks],
        extend_peak_bytes=next(r["peak_bytes"] for r in ranks[0] if r["tokens"] == PROMPT_TOKENS),
    )


def table(costs: Sequence[Costs]) -> Table:
    """The figures beside each other."""
    shown = Table(
        title=f"What CP costs: tiny GLM-5.x, {MODEL.layers} layers, --tp-size {TP_SIZE}", title_justify="left"
    )
    shown.add_column("")
    for cost in costs:
        shown.add_column(cost.name, justify="right")
    off = costs[0]
    rows: dict[str, list[str]] = {
        "weights a rank, MB": [f"{cost.weight_bytes / 1e6:.2f}" for cost in costs],
        "CP buffers, MB": [f"{cost.buffer_bytes / 1e6:.2f}" for cost in costs],
        "of them shards that a rank lacks, MB": [
            f"{cost.buffer_bytes * (TP_SIZE - 1) / TP_SIZE / 1e6:.2f}" for cost in costs
        ],
        "KV pool, tokens": [f"{cost.pool_tokens:,}" for cost in costs],
        "decode step: operators": [f"{len(cost.decode_calls[0]):,}" for cost in costs],
        "decode step: collectives": [str(cost.decode_collectives) for cost in costs],
        "decode step equals CP off's": [
            "",
            *("yes" if c.decode_calls == off.decode_calls else "no" for c in costs[1:]),
        ],
        f"peak of a {PROMPT_TOKENS}-token extend, MB": [f"{cost.extend_peak_bytes / 1e6:.2f}" for cost in costs],
    }
    for name, cells in rows.items():
        shown.add_row(name, *cells)
    return shown


def _decode_calls(records: Sequence[dict[str, Any]], pool_tokens: int) -> list[str]:
    """What the last decode step called, with words for the pool's dimensions: pools differ in size."""
    calls = next(record["calls"] for record in reversed(records) if record["mode"] == "DECODE")
    pages = pool_tokens // PAGE_TOKENS
    dimensions = {pool_tokens: "tokens", pool_tokens + PAGE_TOKENS: "slots", pages: "pages", pages + 1: "buffer pages"}
    pool = re.compile("|".join(rf"(?<=\(){size}(?=,)" for size in dimensions))
    return [pool.sub(lambda match: dimensions[int(match[0])], call) for call in calls]


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def main() -> None:
    """Measure the three arms and print the table."""
    end_on_sigterm()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="sglang-cp-costs-") as folder:
        model = tiny_model(Path(folder), MODEL)
        costs = []
        for arm in ARMS:
            console.print(f"Measuring {arm.name} ...")
            try:
                costs.append(measure(arm, model, Path(folder)))
            except ServerError as error:
                console.print(str(error), style="red", markup=False, soft_wrap=True)
                raise typer.Exit(1) from error
    console.print(table(costs))


if __name__ == "__main__":
    typer.run(main)
