"""The training command: what it writes, when it refuses, and when it fails. The training itself is a stand-in."""

import json

import pytest
import torch
import typer
from typer.testing import CliRunner

from evals import train_recall
from evals.recall_model import build, set_dense
from evals.recall_training import Point
from sglang_cp.tiny_checkpoint.writer import FILES


@pytest.fixture(autouse=True)
def quick_training(monkeypatch):
    def train(recipe, device, seed, on):
        torch.set_num_threads(1)
        model = build(recipe.config, 0.1, device)
        set_dense(model, False)
        on(Point("attention", 0, 32, 1.0, 1.0, 0.5, 1.0))
        on(Point("indexer", 0, 32, 1.0, None, None, 2.0))
        return model

    monkeypatch.setattr(train_recall, "train", train)


def recalls(monkeypatch, share):
    monkeypatch.setattr(train_recall, "measured", lambda *_: {32: {"top-k off": 1.0, "top-k on": share}})


def invoke(*arguments):
    app = typer.Typer()
    app.command()(train_recall.main)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    assert isinstance(result.exception, SystemExit | None)
    return result.exit_code, " ".join(result.output.split())


def test_a_checkpoint_and_its_curve(monkeypatch, tmp_path):
    recalls(monkeypatch, 0.96)
    curve, plot = tmp_path / "curve.csv", tmp_path / "curve.png"
    code, said = invoke(tmp_path / "new" / "model", "--recipe", "quick", "--curve", curve, "--plot", plot)
    assert code == 0, said
    assert {path.name for path in (tmp_path / "new" / "model").iterdir()} == set(FILES)
    assert json.loads((tmp_path / "new" / "model" / "config.json").read_text())["index_topk"] == 16
    assert curve.read_text().startswith("stage,step,")
    assert plot.exists()
    assert "100.0 │ 96.0" in said


@pytest.mark.parametrize("share", [0.94, float("nan")])
def test_low_recall_leaves_no_checkpoint(monkeypatch, share, tmp_path):
    recalls(monkeypatch, share)
    code, said = invoke(tmp_path / "model", "--recipe", "quick", "--curve", tmp_path / "curve.csv")
    assert code == 1
    assert "Recall stays under 95% at 32 tokens: no checkpoint." in said
    assert [path.name for path in tmp_path.iterdir()] == ["curve.csv"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--recipe", "huge"], "--recipe huge is not known: use full or quick."),
        (["--device", "abacus"], "--device abacus cannot be used"),
        (
            ["--curve", "/nowhere/curve.csv"],
            "--curve /nowhere/curve.csv cannot be written: /nowhere is not a directory.",
        ),
        (["--plot", "curve.svg"], "--plot curve.svg is no PNG"),
    ],
)
def test_refusals(arguments, sentence, tmp_path):
    code, said = invoke(tmp_path / "model", *arguments)
    assert (code, sentence in said) == (2, True), said
    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_use_is_refused_before_training(tmp_path):
    (tmp_path / "mine").touch()
    code, said = invoke(tmp_path)
    assert (code, f"{tmp_path} is in use: name another directory for the checkpoint." in said) == (2, True), said


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "file").touch()
    code, said = invoke(tmp_path / "file" / "model")
    assert (code, "cannot be made (File exists): name another directory." in said) == (2, True), said


@pytest.mark.parametrize("recipe", train_recall.RECIPES.values(), ids=train_recall.RECIPES)
def test_every_recipe_measures_where_top_k_drops_most_keys(recipe):
    longest = max(stage.length for stage in recipe.attention)
    assert max(recipe.lengths) == longest >= 16 * recipe.config.index_topk
    assert 4 * recipe.task.keys >= longest
