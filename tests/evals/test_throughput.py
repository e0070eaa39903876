"""The throughput harness as a user runs it, with stand-ins for the servers and for SGLang's client."""

import json
import re
import shutil
import sys

import pytest
import typer
from matplotlib import image
from typer.testing import CliRunner

from evals import throughput, throughput_bench, throughput_run
from evals.server import ServerSpec
from sglang_cp.patching import tool
from sglang_cp.patching.series import read_series
from sglang_cp.patching.state import inspect
from sglang_cp.patching.tree import open_tree
from sglang_cp.pin import read_pin, series_dir
from tests.evals.throughput_fakes import World

GRID = ["--lengths", "1024,4096", "--concurrency", "1,2", "--output-len", "16"]
POINTS = ["1024-c1", "1024-c2", "4096-c1", "4096-c2"]


@pytest.fixture
def world(tmp_path, monkeypatch):
    folder = tmp_path / "client"
    folder.mkdir()
    world = World(folder)
    monkeypatch.setattr(throughput_run, "running", world.running)
    monkeypatch.setattr(throughput_bench, "BENCH", world.bench)
    monkeypatch.setattr(throughput, "verify_applied", lambda: None)
    monkeypatch.setattr(throughput, "describe", lambda: ({"PyTorch": "2.11.0"}, {"gpus": ["GPU"] * 2, "cpus": 8}))
    return world


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 6144}')
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def upstream(tmp_path_factory):
    """Upstream's own files, as far as the patches touch them."""
    root = tmp_path_factory.mktemp("upstream")
    release = read_pin().release
    series, installed = read_series(series_dir(release), release), open_tree()
    (root / "sglang").mkdir()
    (root / "sglang/__init__.py").touch()
    (root / "sglang/_version.py").write_text(f"__version__ = {release!r}\n")
    for path, content in tool.originals(installed, series, inspect(installed, series.digest)).items():
        if content is not None:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)
    return root


class Harness:
    def __init__(self, folder, model):
        self.output = folder / "run.jsonl"
        self.plots = False  # drawing takes most of the time of a run
        self._model = model

    def __call__(self, *arguments, arms=("off", "sharded"), grid=GRID):
        chosen = [part for arm in arms for part in ("--arm", arm)]
        plots = [] if self.plots else ["--no-plots"]
        command = ["--model-path", self._model, "--output", self.output, *plots, *chosen, *grid, *arguments]
        app = typer.Typer()
        app.command()(throughput.main)
        result = CliRunner().invoke(app, [str(word) for word in command], env={"COLUMNS": "200"})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        self.said = " ".join(result.output.split())
        return result.exit_code

    def lines(self):
        return self.output.read_text().splitlines()

    def points(self):
        return [json.loads(line)["point"] for line in self.lines()[1:]]


@pytest.fixture
def harness(tmp_path, model, world):
    return Harness(tmp_path, model)


def names(*arms, points=POINTS):
    return [f"{arm}-{point}" for arm in arms for point in points]


def test_all_arms_are_measured_one_after_the_other(harness, world, upstream, tmp_path):
    harness.plots = True
    code = harness(
        "--unpatched-path", upstream, "--rounds", 3, "--seed", 7, "--", "--chunked-prefill-size", 512, arms=()
    )
    arms = ["unpatched-off", "unpatched-cp", "off", "replicated", "sharded", "auto"]
    assert world.started == arms
    calls = world.asked()
    assert [call["--output-file"].rpartition("/")[2] for call in calls] == [f"{name}.json" for name in names(*arms)]
    assert {(call["--seed"], call["--random-output-len"], call["--random-range-ratio"]) for call in calls} == {
        ("7", "16", "1.0")
    }
    by_concurrency = {call["--max-concurrency"]: call["--num-prompts"] for call in calls}
    assert by_concurrency == {"1": "8", "2": "8"}
    assert world.flushed == len(calls)

    setup, first, *_ = map(json.loads, harness.lines())
    assert setup["server_args"] == ["--chunked-prefill-size", "512"]
    assert setup["versions"] == {"PyTorch": "2.11.0"}
    assert (first["total_tok_s"], first["ttft_ms"]) == (1000.0, {"median": 500.0, "p99": 1000.0})
    assert first["server_args"] == ["--tp-size", "2", "--disable-radix-cache", "--chunked-prefill-size", "512"]
    assert first["cp_counters"] is None
    sharded = [json.loads(line) for line in harness.lines()[1:] if '"arm":"sharded"' in line]
    assert [line["must_deal_out"] for line in sharded] == [False, False, True, True]
    assert {line["cp_counters"]["cp_extends"] for line in sharded} == {3}

    # Every figure is the same, so each ratio is 1: of the goals for TTFT from 16,384 tokens on nothing was measured.
    assert code == 1
    assert "missed: KV pool / unpatched off." in harness.said
    assert "not measured" in harness.said
    for name in ("run-ratios.png", "run-frontier.png"):
        assert image.imread(tmp_path / name).shape[2] == 4
    text = (tmp_path / "run.md").read_text()
    assert re.search(r"^\| 4,096 x 2 +\| auto +\| +1,000.0 \| +100.0 \| +1.000 \|", text, re.MULTILINE)
    assert "- `replicated`: `--tp-size 2 --disable-radix-cache --chunked-prefill-size 512 --enable-prefill-cp" in text
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## throughput, 16 output tokens, tp 2",
        "## latency in ms, median (p99)",
        "## memory of a rank",
        "## goals",
        "## servers",
    ]
    left = {path.name for path in tmp_path.iterdir()} - {"client", "model", "run-logs"}
    assert left == {"run.jsonl", "run.md", "run-ratios.png", "run-frontier.png"}
    assert not list((tmp_path / "run-logs").glob("*.json"))


def test_a_run_that_was_cut_off_goes_on_where_it_was(harness, world):
    world.behave({"off-4096-c1": "dies"})
    assert harness() == 1
    assert "off-4096-c1: the benchmark ended with code 3 and no result." in harness.said
    assert "the client is out of luck" in harness.said
    assert world.points() == names("off", "sharded")  # the other points were measured all the same
    before = harness.lines()

    world.behave({})
    world.started.clear()
    assert harness() == 0
    assert (world.started, world.points()) == (["off"], ["off-4096-c1"])
    assert harness.lines()[: len(before)] == before
    assert len(harness.points()) == 8

    world.started.clear()
    assert harness() == 0
    assert (world.started, world.points()) == ([], [])
    assert len(harness.points()) == 8


@pytest.mark.parametrize("kept_lines", [8, 0])
def test_half_a_line_is_dropped_and_its_point_measured_again(harness, world, kept_lines):
    assert harness() == 0
    world.points()
    whole = harness.output.read_text()
    lines = whole.splitlines(keepends=True)
    harness.output.write_text("".join(lines[:kept_lines]) + lines[kept_lines][:40])
    assert harness() == 0
    assert world.points() == names("off", "sharded")[max(0, kept_lines - 1) :]
    assert harness.output.read_text() == whole


def test_an_arm_that_does_not_start_leaves_the_others_be(harness, world):
    world.broken = {"off"}
    assert harness() == 1
    assert "off: off ended with code 1 while starting" in harness.said
    assert {point["arm"] for point in harness.points()} == {"sharded"}


def test_a_server_that_dies_ends_its_arm(harness, world, monkeypatch):
    world.behave({"off-1024-c2": "dies"})
    usual = throughput_bench.subprocess.run

    def run(command, **options):
        ended = usual(command, **options)
        if ended.returncode:
            world.dead.add("off")
        return ended

    monkeypatch.setattr(throughput_bench.subprocess, "run", run)
    assert harness() == 1
    assert world.points() == [*names("off", points=POINTS[:2]), *names("sharded")]
    assert "off: off does not answer" in harness.said


def test_cp_that_took_no_part_is_a_failure(harness, world):
    world.deals_out = False
    assert harness() == 1
    assert "sharded-4096-c1: no extend was dealt out: CP did not take part." in harness.said
    assert "0 WRONG" in harness.said
    assert "sharded-1024" not in harness.said  # under the threshold


def test_extends_dealt_out_with_cp_off_are_a_failure(harness, world):
    world.deals_out = True
    assert harness(arms=["off"]) == 1
    assert "off-1024-c1: CP is off, yet 3 extends were dealt out." in harness.said


def test_another_setup_does_not_go_into_the_same_file(harness, world, monkeypatch):
    assert harness() == 0
    before = harness.output.read_bytes()
    monkeypatch.setattr(throughput, "describe", lambda: ({"PyTorch": "2.12.0"}, {"gpus": ["GPU"] * 2, "cpus": 8}))
    assert harness("--seed", 1) == 2
    assert "was measured with another setup (seed, versions: PyTorch)" in harness.said
    assert harness.output.read_bytes() == before


def test_the_report_alone_needs_neither_model_nor_server(harness, world, tmp_path, model):
    assert harness() == 0
    pictures = [tmp_path / "run-ratios.png", tmp_path / "run-frontier.png"]
    assert not any(picture.exists() for picture in pictures)
    harness.plots = True
    shutil.rmtree(model)
    world.started.clear()
    assert harness("--report-only") == 0
    assert "4,096 x 2" in harness.said
    assert world.started == []
    assert all(picture.exists() for picture in pictures)


def test_on_a_cpu_goals_are_not_judged(harness, world, upstream):
    assert harness("--device", "cpu", "--unpatched-path", upstream, arms=(), grid=[]) == 0
    assert "goals are for GPUs" in harness.said
    assert {(point["input_tokens"], point["output_tokens"]) for point in harness.points()} == {(64, 8), (320, 8)}
    assert "## goals" not in harness.output.with_suffix(".md").read_text()


def test_without_an_unpatched_tree_its_arms_are_skipped_and_that_is_said(harness, world):
    assert harness(arms=()) == 0
    assert world.started == ["off", "replicated", "sharded", "auto"]
    assert "Without --unpatched-path the unpatched arms are skipped" in harness.said


def test_a_server_that_is_not_its_arm_is_not_measured(harness, world, monkeypatch):
    plain = ServerSpec("sharded", harness.output, ["--tp-size", "2"])
    monkeypatch.setattr(throughput_run.Launch, "spec", lambda *_: plain)
    assert harness(arms=["sharded"]) == 1
    assert "sharded: sharded runs with CP off." in harness.said
    assert not harness.output.exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--arm", "static"], "--arm static is not known: use one of unpatched-off, unpatched-cp, off,"),
        (["--device", "tpu"], "--device tpu is not known: use gpu or cpu."),
        (["--lengths", "0,64"], "--lengths 0,64 is not understood"),
        (["--lengths", ""], "--lengths is not understood"),
        (["--concurrency", "many"], "--concurrency many is not understood"),
        (["--model-path", "/nowhere"], "--model-path /nowhere holds no model (no config.json)."),
        (["--output", "/nowhere/x.jsonl"], "--output /nowhere/x.jsonl cannot be written"),
        (["--unpatched-path", "/nowhere", "--arm", "unpatched-off"], "/nowhere is not a directory"),
        (["--log-dir", "/dev/null/logs"], "/dev/null/logs cannot be made"),
    ],
)
def test_bad_arguments(harness, world, arguments, sentence):
    assert harness(*arguments) == 2
    assert sentence in harness.said
    assert world.started == []
    assert not harness.output.exists()


def test_a_patched_tree_is_not_unpatched(harness, world, upstream, tmp_path):
    patched = tmp_path / "patched"
    shutil.copytree(upstream, patched)
    release = read_pin().release
    tool.apply(open_tree(patched), read_series(series_dir(release), release))
    assert harness("--unpatched-path", patched, arms=["unpatched-off"]) == 2
    assert f"{patched} holds a patched SGLang" in harness.said

    tool.revert(open_tree(patched))
    with (patched / "sglang/srt/server_args.py").open("a") as file:
        file.write("# edited\n")
    assert harness("--unpatched-path", patched, arms=["unpatched-off"]) == 2
    assert "are not those of SGLang" in harness.said
    assert world.started == []


@pytest.mark.parametrize("arms", [["unpatched-off"], ["unpatched-cp", "unpatched-off"]])
def test_unpatched_arms_alone_need_a_tree(harness, arms):
    assert harness(arms=arms) == 2
    assert "name its directory with --unpatched-path" in harness.said


def test_a_model_without_tokenizer_is_refused(harness, model):
    (model / "tokenizer_config.json").unlink()
    assert harness() == 2
    assert "holds no tokenizer, which the benchmark needs" in harness.said


def test_without_matplotlib_there_is_a_way_out(harness, world, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    harness.plots = True
    assert harness() == 2
    assert "or pass --no-plots" in harness.said
    assert world.started == []
    harness.plots = False
    assert harness() == 0


def test_without_what_the_client_imports_no_server_is_started(harness, world, tmp_path):
    (tmp_path / "client" / "missing").write_text("Traceback ...\nModuleNotFoundError: No module named 'datasets'")
    assert harness() == 2
    assert "does not start here: ModuleNotFoundError: No module named 'datasets'." in harness.said
    assert world.started == []
    assert not harness.output.exists()
