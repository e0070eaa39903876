"""Bad input ends with a sentence and exit code 2, before anything is started or written."""

import pytest
import typer
from typer.testing import CliRunner

from evals.fuzz import __main__ as command
from evals.fuzz.results import Folder, Played, Settings

PLAYED = Played(
    index=0, arm="tp2-sharded", requests=1, aborted=0, tokens=2, logprobs=2, max_gap=0.0, retractions=0, cp_extends=1,
    cp_rows=4, cp_rows_over_topk=1, seconds=1.0, failed=False,
)  # fmt: skip


def run(*arguments):
    app = typer.Typer()
    app.command()(command.main)
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, " ".join(result.output.split())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Without an end a run goes on for ever: give --minutes or --streams."),
        (["--streams", "0"], "--streams 0 cannot be used: give at least 1."),
        (["--minutes", "nan"], "--minutes nan is no time"),
        (["--minutes", "inf"], "--minutes inf is no time"),
        (["--minutes", "0"], "--minutes 0.0 is no time"),
        (["--streams", "1", "--block", "0"], "--block 0 cannot be used"),
        (["--streams", "1", "--first-stream", "-1"], "--first-stream -1 cannot be used"),
        (["--streams", "1", "--arm", "tp3"], "--arm tp3 is not known: use one of tp2-sharded"),
        (["--streams", "1", "--arms-per-stream", "99"], "--arms-per-stream 99 must be between 1 and the 8 arms."),
        (["--streams", "1", "--model", "/nowhere"], "--model /nowhere is neither one of glm"),
        (["--replay", "/nowhere.json"], "/nowhere.json cannot be read"),
        (["--report", "/nowhere"], "/nowhere holds no run of evals.fuzz"),
        (["--report"], "Give files after --replay, or folders after --report"),
        (["--replay", "--report", "/nowhere"], "Give files after --replay, or folders after --report"),
        (["--streams", "1", "/nowhere"], "and paths with nothing else"),
    ],
)
def test_bad_input(arguments, sentence, tmp_path):
    output = tmp_path / "run"
    code, said = run(*arguments, "--output", str(output))
    assert code == 2
    assert sentence in said
    assert not output.exists()


def test_a_folder_that_cannot_be_made_is_named():
    code, said = run("--streams", "1", "--output", "/proc/fuzz")
    assert code == 2
    assert "The folder /proc/fuzz cannot be written: No such file or directory. Name another one." in said


def test_a_report_of_several_folders(tmp_path):
    folders = [tmp_path / name for name in ("a", "b")]
    for index, path in enumerate(folders):
        folder = Folder(path, Settings(seed=1, model="glm", tolerance=1e-5, versions={}))
        folder.add(PLAYED.model_copy(update={"index": index}))
    code, said = run("--report", *map(str, folders))
    assert code == 0
    assert "2 different streams" in said


def test_a_run_of_another_seed_is_not_gone_on_with(tmp_path):
    Folder(tmp_path, Settings(seed=1, model="glm", tolerance=1e-5, versions={}))
    code, said = run("--streams", "1", "--output", str(tmp_path))
    assert code == 2
    assert "holds a run with seed 1, not 0" in said


def test_an_output_that_is_a_file(tmp_path):
    (tmp_path / "file").touch()
    code, said = run("--streams", "1", "--output", str(tmp_path / "file"))
    assert code == 2
    assert "is not a directory" in said


def test_a_replay_of_an_unknown_arm(tmp_path):
    text = '{"why": "", "arm": "tp3", "stream": {"waves": [{"requests": [{"prompt": [{"tokens": 1, "seed": 0}],'
    (tmp_path / "replay.json").write_text(text + ' "new_tokens": 1}]}]}}')
    code, said = run("--replay", str(tmp_path / "replay.json"))
    assert code == 2
    assert "is about an arm tp3" in said
