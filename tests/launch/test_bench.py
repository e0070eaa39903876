"""bench.sh: the blog post's points, each once, in one file for each arm that a server runs."""

from __future__ import annotations

import http.server
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.launch.conftest import Machine

# The single-stream probe of the blog post.
PROBE = """
python3 -m sglang.bench_serving --backend sglang-oai --host 127.0.0.1 --port {port}
--model glm-5.2-mxfp4 --tokenizer {model}
--dataset-name random --random-input-len 4096 --random-output-len 512
--num-prompts 16 --max-concurrency 1
"""
# Its sweeps: input tokens, and the concurrencies of its tables.
SWEEPS = {
    1024: [4, 8, 16, 32, 48],
    4096: [4, 8, 16, 32, 48],
    40960: [1, 4, 8, 16, 20, 24, 32],
    61440: [1, 4, 8, 16, 20, 24, 32],
}
OFF = {"enable_prefill_cp": False, "cp_attn_weights": "sharded", "disable_radix_cache": True}


@contextmanager
def serving(info: dict[str, Any]) -> Iterator[int]:
    """The port of a server that has this to say of itself."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/server_info"
            self.send_response(200 if known else 404)
            self.end_headers()
            self.wfile.write(json.dumps(info).encode() if known else b"")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture
def bench(machine: Machine) -> Iterator[list[object]]:
    """Arguments that name the model and a baseline server."""
    with serving(OFF) as port:
        yield ["--model", machine.model, "--port", port]


def results(file: Path) -> list[str]:
    return [json.loads(line)["tag"] for line in file.read_text().splitlines()]


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_the_probe_is_the_blogs_command(machine: Machine, bench: list[object]) -> None:
    run = machine.run("bench.sh", *bench, "probe", "--output", "some results")
    expected = PROBE.replace("{port}", str(bench[-1])).split()
    expected[expected.index("{model}")] = str(machine.model)
    assert run.command == [*expected, "--output-file", "some results/off.jsonl", "--tag", "probe"]
    assert results(machine.work / "some results/off.jsonl") == ["probe"]


def test_without_points_it_measures_the_probe_and_all_sweeps(machine: Machine, bench: list[object]) -> None:
    run = machine.run("bench.sh", *bench)
    assert run.code == 0
    probe, *sweeps = [record["command"] for record in run.records]
    assert option(probe, "--tag") == "probe"
    points = [
        (int(option(command, "--random-input-len")), int(option(command, "--max-concurrency"))) for command in sweeps
    ]
    assert points == [(tokens, concurrency) for tokens, all_of in SWEEPS.items() for concurrency in all_of]
    for command, (_, concurrency) in zip(sweeps, points, strict=True):
        assert option(command, "--random-range-ratio") == "1.0"
        assert option(command, "--random-output-len") == "512"
        assert int(option(command, "--num-prompts")) == max(16, 4 * concurrency)
        assert "--flush-cache" in command
    tags = results(machine.work / "results/off.jsonl")
    assert len(set(tags)) == len(tags) == 1 + len(points)


def test_what_is_measured_in_full_is_not_measured_again(machine: Machine, bench: list[object]) -> None:
    machine.env = {"DIES_AT": "1024-512-c16"}
    stopped = machine.run("bench.sh", *bench, 1024)
    assert stopped.code == 3
    assert len(stopped.records) == 3  # and no further point was tried
    file = machine.work / "results/off.jsonl"
    assert results(file) == ["1024-512-c4", "1024-512-c8"]

    machine.env = {"COMPLETED": "63"}
    lossy = machine.run("bench.sh", *bench, 1024)
    assert lossy.code == 1
    assert "Not all 64 requests of 1024-512-c16 were answered" in lossy.err
    assert len(lossy.records) == 1

    machine.env = {}
    rest = machine.run("bench.sh", *bench, 1024)
    assert [option(record["command"], "--max-concurrency") for record in rest.records] == ["16", "32", "48"]
    again = machine.run("bench.sh", *bench, 1024)
    assert (again.code, again.records) == (0, [])
    assert "1024-512-c4 is in results/off.jsonl already" in again.out


@pytest.mark.parametrize(
    ("info", "file"),
    [
        (OFF, "off.jsonl"),
        (OFF | {"enable_prefill_cp": True}, "sharded.jsonl"),
        (OFF | {"enable_prefill_cp": True, "cp_attn_weights": "replicated"}, "replicated.jsonl"),
        (OFF | {"enable_prefill_cp": True, "disable_radix_cache": False}, "sharded-radix.jsonl"),
    ],
)
def test_the_file_is_named_for_what_the_server_runs(machine: Machine, info: dict[str, Any], file: str) -> None:
    with serving(info) as port:
        run = machine.run("bench.sh", "--model", machine.model, "--port", port, "probe")
    assert option(run.command, "--output-file") == f"results/{file}"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["8192"], "There are no points '8192'"),
        (["probe", "sweep"], "There are no points 'sweep'"),
        (["--arm", "sharded"], "Unknown argument --arm"),
        (["--model", "no such model"], "There is no model directory 'no such model'"),
        (["--port", "30003x"], "--port takes a number from 1 to 65535"),
        (["--port", "1"], "No SGLang server answers on port 1"),
        (["--output", "/dev/null/results"], "The directory '/dev/null/results' cannot be made"),
    ],
)
def test_refusals(machine: Machine, bench: list[object], arguments: list[str], sentence: str) -> None:
    machine.run("bench.sh", *bench, *arguments).assert_refused("bench.sh", sentence)
    assert list(machine.work.iterdir()) == []


def test_the_pinned_bench_serving_knows_every_flag(
    machine: Machine, bench: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.benchmark import serving as bench_serving

    run = machine.run("bench.sh", *bench, "1024", "--", "--dataset-path", "/a file")
    parsed = []
    monkeypatch.setattr(bench_serving, "run_benchmark", parsed.append)
    monkeypatch.setattr(sys, "argv", run.records[0]["command"][2:])
    bench_serving.cli_main()
    (args,) = parsed
    assert (args.random_input_len, args.random_output_len, args.random_range_ratio) == (1024, 512, 1.0)
    assert (args.num_prompts, args.max_concurrency, args.tokenizer) == (16, 4, str(machine.model))
    assert (args.dataset_path, args.tag, args.output_file) == ("/a file", "1024-512-c4", "results/off.jsonl")


def test_help_names_the_points(machine: Machine) -> None:
    run = machine.run("bench.sh", "--help")
    assert (run.code, run.err, run.records) == (0, "", [])
    for word in ("probe", *map(str, SWEEPS), "--model", "--port", "--output"):
        assert f" {word} " in run.out
