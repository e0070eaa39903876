"""The file of results: what may be in it, and what may follow."""

import pytest

from evals.throughput_results import ResultsFile
from sglang_cp.errors import UsageError
from tests.evals.throughput_fakes import measurement, setup


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "results.jsonl"
    file = ResultsFile(path)
    with file.writing(setup()):
        file.append(measurement("off"))
        file.append(measurement("sharded"))
    return path


def test_what_was_written_is_read_again(path):
    file = ResultsFile(path)
    assert file.setup == setup()
    assert file.measurements == [measurement("off"), measurement("sharded")]
    missing = file.missing([measurement("off").point, measurement("auto").point, measurement("off", 4096).point])
    assert [point.name for point in missing] == ["auto-1024-c1", "off-4096-c1"]


def test_a_half_line_is_overwritten(path):
    whole = path.read_bytes()
    with path.open("a") as file:
        file.write('{"point": {"arm": "auto", "input_tok')
    file = ResultsFile(path)
    with file.writing(setup()):
        assert path.read_bytes().startswith(whole)
        file.append(measurement("auto"))
    assert [m.point.arm for m in ResultsFile(path).measurements] == ["off", "sharded", "auto"]


def test_two_runs_do_not_write_one_file(path):
    """Each would overwrite what the other wrote."""
    one, other = ResultsFile(path), ResultsFile(path)
    with one.writing(setup()):
        with pytest.raises(UsageError, match="is written by another run"), other.writing(setup()):
            pass
        one.append(measurement("auto"))
    with other.writing(setup()):
        other.append(measurement("replicated"))
    assert [m.point.arm for m in ResultsFile(path).measurements] == ["off", "sharded", "auto", "replicated"]


def test_a_run_without_a_point_leaves_no_file(tmp_path):
    with pytest.raises(KeyboardInterrupt), ResultsFile(tmp_path / "none.jsonl").writing(setup()):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"seed": 1, "tp_size": 4}, "tp_size, seed"),
        ({"model": {"hidden_size": 6144, "num_hidden_layers": 8}}, "model: num_hidden_layers"),
        ({"versions": {"SGLang": "0.5.15.post1", "commit": "abc"}}, "versions: commit"),
        ({"server_args": ["--chunked-prefill-size", "512"]}, "server_args"),
        ({"machine": {"gpus": ["NVIDIA H100, 80 GiB"] * 2, "topology": None, "cpus": 16}}, "machine: gpus"),
    ],
)
def test_points_of_another_setup_are_kept_apart(path, changes, names):
    file = ResultsFile(path)
    before = path.read_bytes()
    with pytest.raises(UsageError) as refused, file.writing(setup(**changes)):
        pass
    assert path.read_bytes() == before
    assert f"another setup ({names})" in str(refused.value)
    assert str(refused.value).endswith("name another --output.")


@pytest.mark.parametrize(
    ("line", "content", "named"),
    [
        (0, "{}", "Line 1 of"),
        (1, "not JSON", "Line 2 of"),
        (2, '{"point": 1}', "Line 3 of"),
    ],
)
def test_a_broken_line_in_the_middle_is_named(path, line, content, named):
    lines = path.read_text().splitlines()
    lines[line] = content
    path.write_text("\n".join([*lines, ""]))
    with pytest.raises(UsageError, match=named):
        ResultsFile(path)


def test_a_figure_that_is_no_number_is_refused(path):
    path.write_text(path.read_text().replace('"duration_s":1.0', '"duration_s":NaN'))
    with pytest.raises(UsageError, match="Line 2 of"):
        ResultsFile(path)


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (measurement("sharded", extends=0, must=True), "sharded-1024-c1: no extend was dealt out"),
        (measurement("replicated", extends=0, must=True), "replicated-1024-c1: no extend was dealt out"),
        (measurement("off", extends=2), "off-1024-c1: CP is off, yet 2 extends"),
        (measurement("sharded", extends=0), None),
        (measurement("sharded", extends=2, must=True), None),
        (measurement("off", extends=0), None),
        (measurement("unpatched-cp", extends=None, must=True), None),
    ],
)
def test_whether_cp_did_its_part(found, problem):
    assert (found.problem is None) == (problem is None)
    assert (found.problem or "").startswith(problem or "")
