import math
import subprocess
import sys

import torch

from sglang_cp.row_choice import MeasuredRows, large_from, times_text


def test_between_processes():
    command = [sys.executable, "-m", "tests.row_copies", "cpu", "3"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.stdout.endswith("passed\n"), run.stderr[-3000:]


def test_copies_are_taken_from_the_size_on_from_which_they_are_faster():
    assert large_from({1: (1.0, 2.0), 9: (3.0, 2.0)}) == 9
    assert large_from({1: (2.0, 1.0), 9: (3.0, 2.0)}) == 1
    assert large_from({1: (2.0, 1.0), 9: (2.0, 3.0)}) == math.inf
    assert large_from({1: (2.0, 2.0)}) == math.inf


def test_times_name_size_and_unit():
    assert times_text({1 << 20: (2e-5, 3e-5)}) == "1 MiB a rank in 0.020 and 0.030 ms"


def test_each_collective_goes_the_way_that_was_faster_at_its_size():
    taken = []

    class Way:
        num_bytes = 5

        def __init__(self, name):
            self.name = name

        def __getattr__(self, collective):
            return lambda rows: taken.append((collective, rows.nbytes, self.name))

    rows = MeasuredRows(Way("group"), Way("copies"), size=4, gather_from=100, reduce_from=math.inf)
    assert (rows.name, rows.num_bytes) == ("copies or group", 10)
    for num_bytes in (99, 100):
        rows.all_gather(torch.zeros(num_bytes, dtype=torch.uint8))
        rows.all_gather_dealt(
            torch.zeros(num_bytes, 2, dtype=torch.uint8)[:, :1]
        )  # bytes of the rows, not of their span
        rows.reduce_scatter(torch.zeros(4 * num_bytes, dtype=torch.uint8))
    assert [name for _, _, name in taken] == ["group", "group", "group", "copies", "copies", "group"]
    MeasuredRows(Way("group"), Way("copies"), size=4, gather_from=math.inf, reduce_from=100).reduce_scatter(
        torch.zeros(400, dtype=torch.uint8)
    )
    assert taken[-1] == ("reduce_scatter", 400, "copies")
