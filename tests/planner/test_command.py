"""``sglang-cp plan`` as an operator meets it."""

import builtins
import json
from dataclasses import asdict
from xml.etree import ElementTree

import pytest
import typer
from typer.testing import CliRunner

from sglang_cp.cost.calibration import Calibration, write_calibration
from sglang_cp.cost.fit import fit
from sglang_cp.cost.model import CostModel
from sglang_cp.cost.terms import Geometry
from sglang_cp.errors import UsageError
from sglang_cp.planner.arms import Arm
from sglang_cp.planner.break_even import break_even_tokens
from sglang_cp.planner.command import plan
from sglang_cp.planner.prediction import predict
from sglang_cp.planner.system import Workload
from tests.cost.test_calibration import KEY
from tests.cost.test_fit import COEFFICIENTS, measured
from tests.planner.sets import MI355X, system

LENGTHS = ["--input-len", "40960", "--output-len", "512"]
SET = ["--published", MI355X]


def run(*arguments):
    app = typer.Typer()
    app.command()(plan)
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, [str(argument) for argument in arguments])


def refused(*arguments):
    """The sentence of a refusal that printed nothing."""
    result = run(*arguments)
    assert isinstance(result.exception, UsageError), result.output
    assert result.exception.exit_code == 2
    assert result.output == ""
    sentence = str(result.exception)
    assert "\n" not in sentence
    return sentence


def test_a_reader_of_the_post_recognises_the_table():
    result = run(*LENGTHS, "--concurrency", 16, *SET)
    assert result.exit_code == 0, result.output
    output = " ".join(result.output.split())
    off, on = (predict(system(), arm, Workload(40960, 512, 16)) for arm in (Arm.OFF, Arm.REPLICATED))
    for text in (
        "40,960 in / 512 out, concurrency 16",
        "When Prefill Context Parallelism Pays",
        "total tok/s per GPU 3825.1 → 5473.2 (+43.1%)",
        "median TTFT (s) 23.38 → 14.00 (1.67x)",
        f" off {off.ttft_s:.2f} {off.tpot_s * 1e3:.2f} {off.total_tok_s_per_gpu:.1f} 1,376,832 16",
        f"replicated {on.ttft_s:.2f} ({off.ttft_s / on.ttft_s:.2f}x) {on.tpot_s * 1e3:.2f} "
        f"{on.total_tok_s_per_gpu:.1f} ({on.total_tok_s_per_gpu / off.total_tok_s_per_gpu - 1:+.1%}) 1,177,088 16",
        "103,000",
        "181,000",
        "Advice: Turn CP on",
        "Extrapolated: sharded and auto",
        "of 19 published points outside the noise of 8% the model gives 19 the published sign",
        "(published, model): 4,096 x 4 (-7.5%, -11.1%), 4,096 x 32 (+8.5%, +6.0%), 4,096 x 48 (+2.8%, +9.0%).",
        "farthest apart at 61,440 x 8 (+30.8%, +40.6%).",
    ):
        assert text in output


def test_json_has_the_same_figures():
    result = run(*LENGTHS, "--concurrency", 16, *SET, "--json")
    table = json.loads(result.output)
    assert list(table["predictions"]) == ["off", "replicated", "sharded", "auto"]
    for arm in Arm:
        assert table["predictions"][arm] == asdict(predict(system(), arm, Workload(40960, 512, 16)))
    assert table["published"]["total_tok_s_per_gpu"] == {"off": 3825.1, "replicated": 5473.2}
    assert table["break_even"][2] == {
        "output_tokens": 2048,
        "single_stream": break_even_tokens(system(), Arm.REPLICATED, 2048, 1),
        "under_load": break_even_tokens(system(), Arm.REPLICATED, 2048, 16),
        "published": 103_000,
    }
    assert table["auto_break_even"] == break_even_tokens(system(), Arm.AUTO, 512, 16)


def test_a_plot_is_drawn_whole(tmp_path):
    result = run(*LENGTHS, *SET, "--plot", tmp_path / "plan.svg")
    assert result.exit_code == 0, result.output
    assert ElementTree.parse(tmp_path / "plan.svg").getroot().tag.endswith("svg")
    assert [file.name for file in tmp_path.iterdir()] == ["plan.svg"]


def test_lengths_outside_the_measured_ones_are_called_extrapolated():
    result = run("--input-len", 100_000, "--output-len", 4096, *SET)
    output = " ".join(result.output.split())
    assert "100,000 input tokens are outside the measured 1,024 to 61,440, 4,096 output tokens are outside" in output


@pytest.fixture
def calibration(tmp_path):
    path = tmp_path / "calibration.json"
    fitted = fit(measured(CostModel(Geometry(2, 2048), COEFFICIENTS), noise=0.01, repeats=2), Geometry(2, 2048))
    write_calibration(path, Calibration.from_fit(KEY, fitted))
    return path


def test_a_calibration_predicts_all_but_sglangs_cp(calibration):
    options = ["--calibration", calibration, "--tpot-ms", 20, "--kv-tokens", 500_000]
    table = json.loads(run(*LENGTHS, *options, "--json").output)
    assert list(table["predictions"]) == ["off", "sharded", "auto"]
    assert table["predictions"]["off"]["tpot_s"] == pytest.approx(0.02)
    assert table["predictions"]["auto"]["pool_tokens"] == 500_000
    assert table["predictions"]["auto"]["ttft_s"] < table["predictions"]["off"]["ttft_s"]
    assert table["break_even"] == []
    assert run(*LENGTHS, *options, "--plot", calibration.with_name("plan.png")).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([*LENGTHS], "Give one of --published and --calibration"),
        ([*LENGTHS, *SET, "--calibration", "x.json"], "two things to plan with: leave one out"),
        (
            ["--input-len", "0", "--output-len", "5", *SET],
            "--input-len is 0: give a number of tokens from 1 to 1,000,000,000.",
        ),
        (["--input-len", "5", "--output-len", "-5", *SET], "--output-len is -5"),
        ([*LENGTHS, "--concurrency", 10**12, *SET], "--concurrency is 1000000000000"),
        (
            [*LENGTHS, "--calibration", "x.json", "--tpot-ms", "1e308"],
            "a positive number of milliseconds, at most an hour",
        ),
        (
            [*LENGTHS, "--calibration", "x.json", "--tpot-ms", "9", "--kv-tokens", 10**12],
            "--kv-tokens is 1000000000000",
        ),
        ([*LENGTHS, "--calibration", "typo.json", "--tpot-ms", "9"], "name a file of `sglang-cp calibrate --output`"),
        ([*LENGTHS, *SET, "--tp", "0"], "not 0: use --tp 4."),
        ([*LENGTHS, *SET, "--plot", "/proc/x.svg"], "--plot /proc/x.svg cannot be written"),
        (["--input-len", "1048576", "--output-len", "1", *SET], "are over the context of 1,048,576 tokens"),
        ([*LENGTHS, "--published", "mi300x"], "There is no published set mi300x: use one of"),
        ([*LENGTHS, *SET, "--tp", "8"], "was made for tp 4, not 8: use --tp 4, or measure tp 8."),
        ([*LENGTHS, *SET, "--concurrency", "49"], "Decode was measured up to concurrency 48 only"),
        ([*LENGTHS, *SET, "--tpot-ms", "3"], "--tpot-ms goes with --calibration"),
        ([*LENGTHS, *SET, "--plot", "/nowhere/a.png"], "/nowhere is not a directory"),
        ([*LENGTHS, *SET, "--plot", "plan.doc"], "is of no known format: use a name that ends in one of"),
        ([*LENGTHS, "--calibration", "/nowhere.json", "--tpot-ms", "3"], "/nowhere.json cannot be read"),
        ([*LENGTHS, "--calibration", "x.json"], "give --tpot-ms, a positive number of milliseconds"),
        ([*LENGTHS, "--calibration", "x.json", "--tpot-ms", "nan"], "give --tpot-ms, a positive number"),
        ([*LENGTHS, "--calibration", "x.json", "--tpot-ms", "3", "--chunk", "0"], "--chunk is 0"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence):
    assert sentence in refused(*arguments)


def test_a_refused_plan_draws_nothing(tmp_path):
    refused("--input-len", "1048576", "--output-len", "1", *SET, "--plot", tmp_path / "plan.png")
    assert list(tmp_path.iterdir()) == []


def test_a_calibration_for_another_tp_or_with_nan_is_refused(calibration):
    options = [*LENGTHS, "--tpot-ms", "20", "--calibration", calibration]
    assert "was made for tp 2, not 4: use --tp 2, or measure tp 4." in refused(*options, "--tp", "4")
    table = json.loads(calibration.read_text())
    table["coefficients"]["rows"] = float("nan")
    calibration.write_text(json.dumps(table))
    assert "coefficients.rows: Input should be a finite number" in refused(*options)


def test_a_plot_without_matplotlib_is_refused(monkeypatch, tmp_path):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    assert "install sglang-cp with its extra `plot`" in refused(*LENGTHS, *SET, "--plot", tmp_path / "plan.png")
