"""The memcheck run with a stand-in for compute-sanitizer; a server under it needs a GPU."""

import multiprocessing
import multiprocessing.spawn
import os
import subprocess
import time

import pytest
import typer
from typer.testing import CliRunner

from evals import memcheck, memcheck_ranks

SANITIZER = """\
#!/bin/bash
[[ $1 == --tool && $2 == memcheck ]] || exit 9
while [[ $1 != --log-file ]]; do shift; done
log=$2; shift 2
"$@"; code=$?
echo "========= ERROR SUMMARY: 0 errors" > "$log"
exit $code
"""
COUNTERS = {"cp_extends": 2, "cp_rows": 300}
CLEAN, TWO = (
    "========= ERROR SUMMARY: 0 errors\n",
    "========= Invalid __global__ write\n========= ERROR SUMMARY: 2 errors\n",
)


@pytest.fixture
def sanitizer(tmp_path):
    path = tmp_path / "compute sanitizer"
    path.write_text(SANITIZER)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("found", "counters", "sentences"),
    [
        ({"a": CLEAN, "b": CLEAN}, COUNTERS, []),
        ({"a": CLEAN, "b": TWO}, COUNTERS, ["The sanitizer found 2 errors."]),
        ({"a": CLEAN}, COUNTERS, ["The sanitizer summed up 1 of 2 ranks."]),
        ({"a": CLEAN, "b": CLEAN}, {"cp_extends": 0}, ["No extend was dealt out: CP did not take part."]),
    ],
)
def test_what_is_wrong(found, counters, sentences):
    assert memcheck.problems(found, counters, 2) == sentences


def refused(given):
    """What is said of options that cannot be used."""
    app = typer.Typer()
    app.command()(memcheck.main)
    result = CliRunner().invoke(app, [str(word) for option in given.items() for word in option])
    assert result.exit_code == 2
    return " ".join(result.output.split())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"--sanitizer": "no-such-program"}, "--sanitizer no-such-program is not a program here"),
        ({"--model-path": "/nowhere"}, "--model-path /nowhere holds no model"),
        ({"--lengths": "0"}, "--lengths"),
    ],
)
def test_bad_input(tmp_path, sanitizer, change, sentence):
    (tmp_path / "config.json").write_text("{}")
    given = {"--model-path": tmp_path, "--sanitizer": sanitizer, "--output": tmp_path / "logs", **change}
    assert sentence in refused(given)
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize("file", ["memcheck-1.log", memcheck_ranks.END])
def test_an_earlier_runs_files_do_not_count(tmp_path, sanitizer, file):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / file).write_text(CLEAN)
    given = {"--model-path": tmp_path, "--sanitizer": sanitizer, "--output": tmp_path}
    assert "holds an earlier run's files" in refused(given)


def wait_for_the_end(ready):
    memcheck_ranks.register()
    ready.send(os.getpid())
    time.sleep(60)


def test_a_spawned_process_runs_under_the_sanitizer_and_ends_of_its_own_accord(tmp_path, sanitizer, monkeypatch):
    wrapper = memcheck._wrapper(str(sanitizer), tmp_path)
    monkeypatch.setenv(memcheck_ranks.VARIABLE, str(wrapper))
    spawn = multiprocessing.get_context("spawn")
    usual = multiprocessing.spawn.get_executable()
    memcheck_ranks.register()
    try:
        here, there = spawn.Pipe()
        process = spawn.Process(target=wait_for_the_end, args=(there,))
        process.start()
    finally:
        multiprocessing.set_executable(usual)
    assert here.poll(60)
    pid = here.recv()
    assert pid != process.pid, "it was not started by the sanitizer"
    (tmp_path / memcheck_ranks.END).touch()
    process.join(60)
    assert process.exitcode == 0
    assert list(memcheck._summed_up(tmp_path).values()) == [CLEAN]


def test_the_wrapper_passes_arguments_and_exit_codes_on(tmp_path, sanitizer):
    wrapper = memcheck._wrapper(str(sanitizer), tmp_path)
    ended = subprocess.run([wrapper, "-c", "import sys; print(sys.argv[1]); sys.exit(7)", "a b"], capture_output=True)
    assert (ended.returncode, ended.stdout) == (7, b"a b\n")
