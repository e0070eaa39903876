"""A run's folder: what it keeps, what it refuses, what is reported."""

import pytest

from evals.fuzz.report import report
from evals.fuzz.results import Folder, Played, Replay, Settings, read_played, unproved
from sglang_cp.errors import UsageError
from tests.evals.fuzz.examples import request, stream

SETTINGS = Settings(seed=3, model="glm", tolerance=1e-5, versions={"sglang": "1"})


def line(index=0, arm="tp2-sharded", **changes):
    values = {"requests": 2, "aborted": 1, "tokens": 7, "logprobs": 5, "max_gap": 1e-6, "retractions": 0,
              "cp_extends": 3, "cp_rows": 90, "cp_rows_over_topk": 9, "seconds": 1.5, "failed": False}  # fmt: skip
    return Played(index=index, arm=arm, **{**values, **changes})


def test_a_run_goes_on_after_the_lines_that_were_written(tmp_path):
    Folder(tmp_path, SETTINGS).add(line(4))
    with (tmp_path / "played.jsonl").open("a") as file:
        file.write('{"index": 5, "ar')  # killed while writing
    assert Folder(tmp_path, SETTINGS).done == {(4, "tp2-sharded")}


def test_what_was_written_after_a_cut_off_line_is_read(tmp_path):
    (tmp_path / "played.jsonl").write_text('{"index": 5, "ar')
    folder = Folder(tmp_path, SETTINGS)
    folder.add(line(6))
    folder.add(line(7))
    assert Folder(tmp_path, SETTINGS).done == {(6, "tp2-sharded"), (7, "tp2-sharded")}


@pytest.mark.parametrize(
    "change", [{"seed": 4}, {"model": "deepseek-v32"}, {"tolerance": 1e-4}, {"versions": {"sglang": "2"}}]
)
def test_a_folder_of_another_run_is_refused(change, tmp_path):
    Folder(tmp_path, SETTINGS)
    with pytest.raises(UsageError, match="holds a run with"):
        Folder(tmp_path, SETTINGS.model_copy(update=change))


def test_a_line_that_is_not_ours_is_named(tmp_path):
    (tmp_path / "played.jsonl").write_text("{}\n" + line().model_dump_json() + "\n")
    with pytest.raises(UsageError, match="line 1"):
        read_played(tmp_path)


def test_a_replay_is_read_back(tmp_path):
    replay = Replay(why="a pull too early", arm="tp2-sharded", stream=stream(request()), found=("token 1",), seed=0)
    path = Folder(tmp_path, SETTINGS).add_failure(replay)
    assert Replay.read(path) == replay


@pytest.mark.parametrize("text", ["", "{}", '{"why": "", "arm": "a", "stream": {"waves": []}}', "[1]"])
def test_another_file_is_no_replay(text, tmp_path):
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(UsageError, match="is not a replay"):
        Replay.read(tmp_path / "other.json")


def test_a_missing_replay_is_named(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        Replay.read(tmp_path / "none.json")


def test_cp_must_have_taken_part():
    assert unproved([line(index) for index in range(10)]) == []
    assert unproved([line(index, cp_extends=0, cp_rows_over_topk=0) for index in range(9)]) == []
    (no_cp, no_drop) = unproved([line(index, cp_extends=0, cp_rows_over_topk=0) for index in range(10)])
    assert no_cp == "tp2-sharded: no extend was dealt out in 10 streams."
    assert no_drop.startswith("tp2-sharded: top-k dropped no key")


def test_the_arm_under_pressure_must_have_retracted():
    under_pressure = [line(index, arm="tp2-sharded-pressure") for index in range(10)]
    assert unproved(under_pressure) == ["tp2-sharded-pressure: no request was retracted in 10 streams."]
    assert unproved([*under_pressure[1:], line(0, arm="tp2-sharded-pressure", retractions=1)]) == []


def test_report_adds_up_over_folders(tmp_path):
    one, other = Folder(tmp_path / "a", SETTINGS), Folder(tmp_path / "b", SETTINGS)
    one.add(line(0))
    one.add(line(1, arm="tp4-sharded", max_gap=2e-6, retractions=2, failed=True))
    other.add(line(0, arm="tp4-sharded"))
    lines = report([one.path, other.path]).splitlines()
    assert lines[2] == "| tp2-sharded | 1 | 2 | 1 | 7 | 5 | 1.0e-06 | 0 | 3 | 90 | 9 | 0 |"
    assert lines[3] == "| tp4-sharded | 2 | 4 | 2 | 14 | 10 | 2.0e-06 | 2 | 6 | 180 | 18 | 1 |"
    assert lines[4] == "| all | 3 | 6 | 3 | 21 | 15 | 2.0e-06 | 2 | 9 | 270 | 27 | 1 |"
    assert "Seeds 3; 2 different streams; model glm" in lines[6]
