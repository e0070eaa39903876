"""The bench of the decision: its arithmetic, and what it says of times that are known."""

import json
import random
import re

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from evals import regret as module
from evals.regret import Regret, held_out, regret, summarize
from evals.regret_grid import grid
from evals.regret_times import Timed, read_times, write_times
from sglang_cp.cost.calibration import Calibration, read_calibration, write_calibration
from sglang_cp.cost.fit import fit
from sglang_cp.cost.model import CostModel
from sglang_cp.cost.shape import ExtendShape
from sglang_cp.cost.terms import Mode
from tests.cost.test_calibration import KEY
from tests.cost.test_fit import COEFFICIENTS, measured
from tests.cost.test_fit import GEOMETRY as TP4

SHAPE = ExtendShape.of([100])
OTHERS = [ExtendShape.of([100]), ExtendShape.of([8000])]
"""Extends that no calibration here was fitted to: one for either mode."""
TRUTH = CostModel(TP4, COEFFICIENTS, pull_seconds=0.012, host_seconds={Mode.TP: 0.015, Mode.CP: 0.02})


def fitted(noise):
    return fit(measured(TRUTH, noise=noise, repeats=3), TP4, pull_seconds=0.012)


def timed_by(seconds, shapes):
    return [Timed(shape, seconds(shape, Mode.TP), seconds(shape, Mode.CP)) for shape in shapes]


@settings(deadline=None)
@given(st.floats(1e-3, 1), st.floats(1e-3, 1))
def test_a_choice_costs_its_time_over_the_better_one(tp_seconds, cp_seconds):
    always = {Mode.CP: "launch_tp", Mode.TP: "launch_cp"}
    ratios = {}
    for mode, dear in always.items():
        judged = regret(CostModel(TP4, {dear: 1.0}), Timed(SHAPE, tp_seconds, cp_seconds))
        assert judged.chosen is mode
        ratios[mode] = judged.ratio
    assert min(ratios.values()) == 1
    assert ratios[Mode.TP] / ratios[Mode.CP] == pytest.approx(tp_seconds / cp_seconds)


def judged(*ratios):
    return [Regret(Timed(SHAPE, 1, 1), Mode.CP, ratio) for ratio in ratios]


@pytest.mark.parametrize(
    ("ratios", "share", "percentile", "worst", "reached"),
    [
        ([1.0] * 19 + [1.09], 0.95, 1.0, 1.09, True),
        ([1.0] * 19 + [1.11], 0.95, 1.0, 1.11, False),
        ([1.0] * 18 + [1.04, 1.09], 0.90, 1.04, 1.09, False),
        ([1.03], 1.0, 1.03, 1.03, True),
    ],
)
def test_the_goal_is_3_percent_for_95_percent_and_10_at_most(ratios, share, percentile, worst, reached):
    summary = summarize(judged(*ratios))
    assert (summary.share_within, summary.percentile_95, summary.worst) == (share, percentile, worst)
    assert summary.reached is reached


def test_a_model_fitted_to_noisy_times_reaches_the_goal_on_the_grid():
    model = fitted(0.01).model
    regrets = [regret(model, timed) for timed in timed_by(TRUTH.seconds, grid())]
    summary = summarize(regrets)
    assert summary.reached
    assert 0 < summary.chosen_cp < summary.extends


def test_a_threshold_on_rows_alone_would_not():
    """The bench can fail: what this machine's break-even is without prefixes misjudges those with one."""
    by_rows = CostModel(TP4, {"launch_cp": 1.0, "repeated_rows": 1 / 1500})
    assert not summarize([regret(by_rows, timed) for timed in timed_by(TRUTH.seconds, grid())]).reached


def test_held_out_extends_are_judged_without_themselves(monkeypatch):
    asked = []
    monkeypatch.setattr(
        module, "fit", lambda others, *a, **k: asked.append({m.shape for m in others}) or fit(others, *a, **k)
    )
    given = fitted(0.01)
    shapes = {m.shape for m in given.measurements}
    regrets = held_out(given)
    assert [item.timed.shape for item in regrets] == list(dict.fromkeys(m.shape for m in given.measurements))
    assert asked == [shapes - {item.timed.shape} for item in regrets]


def run(*arguments):
    app = typer.Typer()
    app.command()(module.main)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def calibration(tmp_path):
    path = tmp_path / "calibration.json"
    write_calibration(path, Calibration.from_fit(KEY.model_copy(update={"tp": 4}), fitted(0.005)))
    return path


def test_smoke_run_over_a_small_grid(calibration, tmp_path):
    rng = random.Random(0)
    known = {m.shape for m in read_calibration(calibration).to_fit().measurements}
    small = grid([64, 2048, 8192], [1, 4], [0, 4096], [8192])
    timed = timed_by(lambda shape, mode: TRUTH.seconds(shape, mode) * rng.gauss(1, 0.002), small)
    times, again = tmp_path / "times.json", tmp_path / "again.json"
    write_times(times, timed)
    result = run("--calibration", calibration, "--times", times, "--output", again)
    assert result.exit_code == 0, result.output
    unknown = [item for item in timed if item.shape not in known]
    assert 0 < len(unknown) < len(timed)
    assert f"{len(unknown)} extends" in result.output
    assert read_times(again) == unknown
    chosen = {Mode.CP: 0, Mode.TP: 0}
    for item in unknown:
        chosen[regret(read_calibration(calibration).to_fit().model, item).chosen] += 1
    assert min(chosen.values()) > 0
    assert f"{chosen[Mode.CP]} as CP" in result.output
    # Each extend has its row: requests, new and cached tokens, both times, the choice and its ratio.
    assert re.search(r"^ +1 +64 +4,096 +\d+\.\d\d +\d+\.\d\d +tp +1\.0\d\d", result.output, re.MULTILINE)


def test_a_missed_goal_is_exit_code_1(calibration, tmp_path):
    always_wrong = [Timed(t.shape, t.cp_seconds, t.tp_seconds) for t in timed_by(TRUTH.seconds, OTHERS)]
    write_times(tmp_path / "times.json", always_wrong)
    result = run("--calibration", calibration, "--times", tmp_path / "times.json")
    assert result.exit_code == 1
    assert "0% (goal 95%)" in " ".join(result.output.split())


def test_what_noise_may_have_done_is_said_and_changes_no_verdict(calibration, tmp_path):
    """The chosen mode is 5 % slower in two extends, of which one was timed to 6 %."""
    model = read_calibration(calibration).to_fit().model
    timed = []
    for shape, noise in zip(OTHERS, (0.06, 0.04), strict=True):
        cp_is_chosen = regret(model, Timed(shape, 1, 1)).chosen is Mode.CP
        timed.append(Timed(shape, *((1.0, 1.05) if cp_is_chosen else (1.05, 1.0)), noise))
    write_times(tmp_path / "times.json", timed)
    result = run("--calibration", calibration, "--times", tmp_path / "times.json")
    assert result.exit_code == 1
    assert "5.0% in the median, 6.0% at most; 1 of the 2 extends over 1.03 are within their own." in result.output


def test_times_of_nothing_but_the_calibrations_own_extends_judge_nothing(calibration, tmp_path):
    write_times(tmp_path / "times.json", timed_by(TRUTH.seconds, [ExtendShape.of([2048])]))
    result = run("--calibration", calibration, "--times", tmp_path / "times.json")
    assert result.exit_code == 2
    assert "has only extends that" in result.output


def test_what_is_read_is_not_replaced(calibration, tmp_path):
    before = calibration.read_bytes()
    assert "would replace what is read" in refused("--calibration", calibration, "--output", calibration)
    assert calibration.read_bytes() == before


def test_without_times_the_calibration_is_its_own_judge(calibration):
    result = run("--calibration", calibration)
    assert result.exit_code in (0, 1)
    assert "10 extends" in result.output


def refused(*arguments):
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    return " ".join(result.output.split())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--calibration", "/nowhere.json"], "The calibration /nowhere.json cannot be read"),
        (["--calibration", "/nowhere.json", "--output", "/nowhere/x.json"], "/nowhere is not a directory"),
        (["--calibration", "/nowhere.json", "--output", "/tmp"], "--output /tmp is a directory: name a file."),
        (["--times", "x.json"], "give it with --calibration"),
        (["--url", "http://127.0.0.1:9", "--calibration", "x.json"], "leave one of --url and --calibration out"),
        (["--url", "http://127.0.0.1:9"], "The server at http://127.0.0.1:9 does not answer"),
        (["--url", "http://127.0.0.1:9", "--tp", "2"], "--tp is of a server that is started here"),
        (["--url", "nonsense"], "--url 'nonsense' is no address of a server"),
        (["--url", ""], "--url is empty"),
        (["--tp", "3"], "--tp is 3: use one of 2, 4, 8."),
        (["--tp", "0"], "--tp is 0"),
        (["--rounds", "0"], "--rounds is 0: give a number from 1 to 100."),
        (["--rounds", "101"], "--rounds is 101"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, sentence, monkeypatch):
    monkeypatch.setattr(module, "tiny_server", None)  # nothing is started
    assert sentence in refused(*arguments)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"coefficients": {"rows": float("nan")}}, "coefficients.rows"),
        ({"pull_seconds": -1.0}, "pull_seconds"),
        ({"measurements": []}, "measurements"),
    ],
)
def test_a_broken_calibration_judges_nothing(calibration, tmp_path, changes, named):
    calibration.write_text(json.dumps({**json.loads(calibration.read_text()), **changes}))
    output = tmp_path / "times.json"
    assert named in refused("--calibration", calibration, "--output", output)
    assert not output.exists()


def test_a_calibration_of_too_few_points_cannot_be_its_own_judge(calibration):
    table = json.loads(calibration.read_text())
    short = ([64], [512])
    table["measurements"] = [m for m in table["measurements"] if m["extend_lens"] in short]
    calibration.write_text(json.dumps(table))
    assert "too few to fit" in refused("--calibration", calibration)
