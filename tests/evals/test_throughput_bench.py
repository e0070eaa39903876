"""One point: what SGLang's client is asked, and which of its results are none."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from evals import throughput_bench
from evals.throughput_arms import ARMS, Launch
from evals.throughput_bench import BenchError, bench_command, measure
from evals.throughput_results import Point
from tests.evals.throughput_fakes import FakeServer, World

POINT = Point(arm="sharded", input_tokens=4096, output_tokens=16, concurrency=2, prompts=8, seed=3)


@pytest.fixture
def world(tmp_path, monkeypatch):
    world = World(tmp_path)
    monkeypatch.setattr(throughput_bench, "BENCH", world.bench)
    return world


def measured(world):
    launch = Launch(Path("/a model"), 2)
    server = FakeServer(launch.spec(ARMS["sharded"]), world)
    return measure(launch, ARMS["sharded"], POINT, server, world.folder)


def test_the_pinned_client_makes_prompts_of_exact_length_without_a_network(monkeypatch, tmp_path):
    from sglang.benchmark import serving
    from sglang.benchmark.datasets import get_dataset

    parsed = []
    monkeypatch.setattr(serving, "run_benchmark", parsed.append)
    monkeypatch.setattr(sys, "argv", bench_command(POINT, "http://127.0.0.1:1", tmp_path, tmp_path / "out.json")[2:])
    serving.cli_main()
    (args,) = parsed
    assert (args.base_url, args.backend, args.output_file) == ("http://127.0.0.1:1", "sglang", f"{tmp_path}/out.json")
    assert (args.num_prompts, args.max_concurrency, args.seed) == (8, 2, 3)
    assert (args.model, args.tokenizer) == (str(tmp_path), str(tmp_path))
    assert args.flush_cache
    assert args.output_details
    monkeypatch.setattr("sglang.benchmark.datasets.random.download_and_cache_hf_file", None)
    requests = get_dataset(args, SimpleNamespace(vocab_size=100))
    assert [(len(request.prompt), request.prompt_len, request.output_len) for request in requests] == [
        (4096, 4096, 16)
    ] * 8
    assert {type(token) for request in requests for token in request.prompt} == {int}


@pytest.mark.parametrize(
    ("input_tokens", "concurrency", "requests"), [(1024, 16, 16), (16384, 16, 4), (61440, 16, 2), (61440, 1, 1)]
)
def test_the_warm_up_has_the_batches_of_the_measurement(input_tokens, concurrency, requests):
    point = POINT.model_copy(update={"input_tokens": input_tokens, "concurrency": concurrency})
    command = bench_command(point, "http://127.0.0.1:1", Path(), Path())
    assert command[command.index("--warmup-requests") + 1] == str(requests)


def test_figures_are_the_clients_and_the_servers(world):
    found = measured(world)
    assert (found.total_tok_s, found.output_tok_s, found.duration_s) == (1000.0, 100.0, 2.0)
    assert (found.ttft_ms.median, found.ttft_ms.p99) == (500.0, 1000.0)
    assert (found.tpot_ms.median, found.e2e_ms.p99) == (10.0, 1600.0)
    assert found.interactivity_tok_s == pytest.approx(16 / 0.8)
    assert (found.pool_tokens, found.cp_memory["buffer_bytes"]) == (1000, 4096)
    assert found.cp_counters == {"cp_extends": 3, "cp_rows": 3}
    assert (found.must_deal_out, found.problem) == (True, None)


def test_a_result_that_an_earlier_run_left_is_not_taken(world):
    (world.folder / f"{POINT.name}.json").write_text("half of an old res")
    assert measured(world).total_tok_s == 1000.0


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("dies", "the benchmark ended with code 3 and no result"),
        (
            {"completed": 7, "errors": ["", "Traceback:\nConnectionError: reset", ""]},
            "7 of 8 requests were answered (Con",
        ),
        ({"completed": 7}, "7 of 8 requests were answered (no reason given)"),
        ({"output_lens": [16] * 7 + [15]}, "answers have [15, 16] tokens, not 16"),
        ({"ttfts": [0.5] * 7 + [0.0]}, "an answer had no text"),
    ],
)
def test_what_was_not_measured_in_full_is_no_result(world, how, sentence):
    world.behave({POINT.name: how})
    with pytest.raises(BenchError) as refused:
        measured(world)
    assert sentence in str(refused.value)


def test_a_client_that_hangs_is_ended(world, monkeypatch):
    monkeypatch.setattr(throughput_bench, "POINT_TIMEOUT_S", 0.05)
    monkeypatch.setattr(throughput_bench, "BENCH", (sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"))
    with pytest.raises(BenchError, match="took longer than"):
        measured(world)
