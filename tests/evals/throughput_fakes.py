"""Stand-ins for the servers and the client of a throughput run, and measurements made by hand."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evals.server import ServerError, ServerSpec
from evals.throughput_results import Measurement, Point, Quantiles, Setup

# What the client writes of a point, or fails to; how, the file `behaviour.json` beside it says by the point's name.
CLIENT = """\
import json, pathlib, sys

here = pathlib.Path(__file__).parent
if "--help" in sys.argv:
    sys.exit((here / "missing").read_text() if (here / "missing").exists() else 0)
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
with open(here / "asked.jsonl", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
output = pathlib.Path(options["--output-file"])
how = json.loads((here / "behaviour.json").read_text()).get(output.stem, {})
if how == "dies":
    print("the client is out of luck")
    sys.exit(3)
prompts, tokens = int(options["--num-prompts"]), int(options["--random-output-len"])
result = {
    "duration": 2.0, "completed": prompts, "errors": [""] * prompts,
    "total_throughput": 1000.0, "output_throughput": 100.0,
    "output_lens": [tokens] * prompts, "ttfts": [0.5] * prompts, "generated_texts": ["text"] * prompts,
}
for figure, median in (("ttft", 500.0), ("tpot", 10.0), ("e2e_latency", 800.0)):
    result |= {f"median_{figure}_ms": median, f"p99_{figure}_ms": 2 * median}
with open(output, "a") as file:
    file.write(json.dumps(result | how) + "\\n")
"""


class FakeServer:
    """A server of one arm: what it says of itself follows from its launch."""

    def __init__(self, spec: ServerSpec, world: World) -> None:
        self.name, self.url = spec.name, "http://127.0.0.1:1"
        self._world = world
        args = list(spec.args)
        cp = "--enable-prefill-cp" in args
        self._info: dict[str, Any] = {
            "version": "0.5.15.post1",
            "enable_prefill_cp": cp,
            "chunked_prefill_size": 8192,
            "max_total_num_tokens": 1000 if cp else 1010,
        }
        self._state: dict[str, Any] = {"memory_usage": {"weight": 7.5, "token_capacity": 1000}}
        if "PYTHONPATH" not in spec.env:
            given = dict(itertools.pairwise(args))
            self._info["cp_attn_weights"] = given.get("--cp-attn-weights", "sharded")
            self._info["cp_min_tokens"] = given.get("--cp-min-tokens", 2048)
            self._state["sglang_cp"] = {"cp_extends": 0, "cp_rows": 0}
            self._state["sglang_cp_memory"] = {"weight_bytes": 1, "buffer_bytes": 4096, "shard_source": None}
        self._deals_out = cp if world.deals_out is None else world.deals_out

    def flush_cache(self) -> None:
        self._world.flushed += 1

    def info(self) -> dict[str, Any]:
        if self.name in self._world.dead:
            raise ServerError(f"{self.name} does not answer")
        if self._deals_out and "sglang_cp" in self._state:
            self._state["sglang_cp"] = {name: count + 3 for name, count in self._state["sglang_cp"].items()}
        return {**self._info, "internal_states": [dict(self._state)]}


@dataclass
class World:
    """Everything that a run meets outside of itself.

    Attributes:
        folder: of the client.
        started: names of the servers that were started.
        broken: those that do not start.
        dead: those that do not answer any more.
        deals_out: whether servers deal extends out; None for those with CP.
        flushed: times that a cache was flushed.
    """

    folder: Path
    started: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    deals_out: bool | None = None
    flushed: int = 0

    def __post_init__(self) -> None:
        (self.folder / "client.py").write_text(CLIENT)
        self.behave({})

    @property
    def bench(self) -> tuple[str, ...]:
        return (sys.executable, "-I", "-S", str(self.folder / "client.py"))

    def behave(self, by_point: Mapping[str, object]) -> None:
        """How the client does at points: ``"dies"``, or what its result has in place of the usual."""
        (self.folder / "behaviour.json").write_text(json.dumps(by_point))

    def asked(self) -> list[dict[str, str]]:
        """Options of each call of the client since the last time."""
        file = self.folder / "asked.jsonl"
        calls = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        file.unlink(missing_ok=True)
        return [dict(zip(call[::2], call[1::2], strict=False)) for call in calls]

    def points(self) -> list[str]:
        """Names of the points of those calls."""
        return [Path(call["--output-file"]).stem for call in self.asked()]

    @contextmanager
    def running(self, spec: ServerSpec, _: Path) -> Iterator[FakeServer]:
        self.started.append(spec.name)
        if spec.name in self.broken:
            raise ServerError(f"{spec.name} ended with code 1 while starting")
        yield FakeServer(spec, self)


def measurement(
    arm: str,
    input_tokens: int = 1024,
    concurrency: int = 1,
    *,
    total: float = 100.0,
    ttft: float = 10.0,
    tpot: float = 1.0,
    e2e: float = 500.0,
    pool: int = 1000,
    extends: int | None = 1,
    must: bool = False,
) -> Measurement:
    """One point with these figures: tokens a second, medians in ms, tokens."""
    return Measurement(
        point=Point(arm=arm, input_tokens=input_tokens, output_tokens=512, concurrency=concurrency, prompts=8, seed=0),
        sglang="0.5.15.post1",
        server_args=["--tp-size", "2"],
        duration_s=1.0,
        total_tok_s=total,
        output_tok_s=total / 10,
        ttft_ms=Quantiles(median=ttft, p99=2 * ttft),
        tpot_ms=Quantiles(median=tpot, p99=2 * tpot),
        e2e_ms=Quantiles(median=e2e, p99=2 * e2e),
        cp_counters=None if extends is None else {"cp_extends": extends},
        must_deal_out=must,
        pool_tokens=pool,
        memory_gb={"weight": 7.5},
        cp_memory=None if extends is None else {"buffer_bytes": 4096},
    )


def setup(**changes: Any) -> Setup:
    """Of two GPUs."""
    usual: dict[str, Any] = {
        "model": {"hidden_size": 6144},
        "tp_size": 2,
        "device": "gpu",
        "output_tokens": 512,
        "seed": 0,
        "rounds": 4,
        "least_prompts": 8,
        "min_tokens": None,
        "server_args": [],
        "versions": {"SGLang": "0.5.15.post1", "commit": None},
        "machine": {"gpus": ["NVIDIA H200, 140 GiB"] * 2, "topology": None, "cpus": 16},
    }
    return Setup(**{**usual, **changes})
