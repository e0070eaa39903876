"""The bench of the decision: its grid, its arithmetic, and a smoke run on a machine that is known."""

import json
import random

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from evals import regret as module
from evals.regret import Regret, Timed, grid, held_out, measure, read_times, regret, summarize
from sglang_cp.cost.calibration import Calibration, write_calibration
from sglang_cp.cost.fit import fit
from sglang_cp.cost.model import CostModel
from sglang_cp.cost.shape import ExtendShape
from sglang_cp.cost.terms import Mode
from sglang_cp.errors import UsageError
from tests.cost.test_calibration import KEY
from tests.cost.test_fit import COEFFICIENTS, measured
from tests.cost.test_fit import GEOMETRY as TP4

SHAPE = ExtendShape.of([100])
TRUTH = CostModel(TP4, COEFFICIENTS, pull_seconds=0.012, host_seconds={Mode.TP: 0.015, Mode.CP: 0.02})


def fitted(noise):
    return fit(measured(TRUTH, noise=noise, repeats=3), TP4, pull_seconds=0.012)


def test_the_full_grid_is_that_of_the_goal():
    shapes = grid()
    assert len(shapes) == len(set(shapes)) == 200
    assert {len(shape.extend_lens) for shape in shapes} == {1, 2, 4, 8, 16}
    assert {shape.prefix_lens[0] for shape in shapes} == {0, 1024, 4096, 16384, 65536}
    assert max(shape.rows for shape in shapes) == 32768
    assert min(shape.rows for shape in shapes) == 64


def test_a_chunk_cuts_the_last_request_that_it_holds():
    assert grid([100], [3], [7], [250]) == [ExtendShape.of([100, 100, 50], [7, 7, 7])]
    assert grid([100], [3], [0], [200]) == [ExtendShape.of([100, 100])]


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
    regrets = [regret(model, timed) for timed in measure(grid(), TRUTH.seconds)]
    summary = summarize(regrets)
    assert summary.reached
    assert 0 < summary.chosen_cp < summary.extends


def test_a_threshold_on_rows_alone_would_not():
    """The bench can fail: what this machine's break-even is without prefixes misjudges those with one."""
    by_rows = CostModel(TP4, {"launch_cp": 1.0, "repeated_rows": 1 / 1500})
    assert not summarize([regret(by_rows, timed) for timed in measure(grid(), TRUTH.seconds)]).reached


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


def write_times(path, timed):
    records = [
        {
            "extend_lens": t.shape.extend_lens,
            "prefix_lens": t.shape.prefix_lens,
            "tp_seconds": t.tp_seconds,
            "cp_seconds": t.cp_seconds,
        }
        for t in timed
    ]
    path.write_text(json.dumps(records))
    return path


def test_smoke_run_over_a_small_grid(calibration, tmp_path):
    rng = random.Random(0)
    small = grid([64, 2048, 8192], [1, 4], [0, 4096], [8192])
    timed = measure(small, lambda shape, mode: TRUTH.seconds(shape, mode) * rng.gauss(1, 0.002))
    times = write_times(tmp_path / "times.json", timed)
    assert read_times(times) == timed
    result = run("--calibration", calibration, "--times", times, "--output", tmp_path / "regret.json")
    assert result.exit_code == 0, result.output
    assert f"{len(small)} extends" in result.output
    written = json.loads((tmp_path / "regret.json").read_text())
    assert [item["chosen"] for item in written].count("cp") > 0


def test_a_missed_goal_is_exit_code_1(calibration, tmp_path):
    always_wrong = [
        Timed(t.shape, t.cp_seconds, t.tp_seconds) for t in measure(grid([64, 8192], [1], [0], [8192]), TRUTH.seconds)
    ]
    result = run("--calibration", calibration, "--times", write_times(tmp_path / "times.json", always_wrong))
    assert result.exit_code == 1
    assert "0% (goal 95%)" in " ".join(result.output.split())


def test_without_times_the_calibration_is_its_own_judge(calibration):
    result = run("--calibration", calibration)
    assert result.exit_code in (0, 1)
    assert "10 extends" in result.output


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("[]", "List should have at least 1 item"),
        ('[{"extend_lens": [1], "prefix_lens": [0], "tp_seconds": NaN, "cp_seconds": 1}]', "0.tp_seconds"),
        ('[{"extend_lens": [1], "prefix_lens": [], "tp_seconds": 1, "cp_seconds": 1}]', "do not go with"),
        ("[{", "EOF"),
    ],
)
def test_times_that_are_none_are_refused(tmp_path, content, named):
    path = tmp_path / "times.json"
    path.write_text(content)
    with pytest.raises(UsageError) as refused:
        read_times(path)
    assert named in str(refused.value)
    assert str(refused.value).endswith("measure the grid again.")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--calibration", "/nowhere.json"], "The calibration /nowhere.json cannot be read"),
        (["--calibration", "/nowhere.json", "--output", "/nowhere/x.json"], "/nowhere is not a directory"),
    ],
)
def test_bad_input_is_exit_code_2(arguments, sentence):
    result = run(*arguments)
    assert result.exit_code == 2
    assert sentence in " ".join(result.output.split())
