"""Times of extends, their noise, and their file."""

import pytest

from evals.regret_times import Timed, read_times, write_times
from sglang_cp.calibration.requests import Times
from sglang_cp.cost.shape import ExtendShape
from sglang_cp.errors import UsageError

SHAPE = ExtendShape.of([100, 3], [0, 64])


def test_medians_and_half_the_range_of_both_modes():
    timed = Timed.of(SHAPE, Times(tp=[1.0, 1.2, 1.0, 1.0], cp=[2.0, 2.0, 2.2]))
    assert (timed.shape, timed.tp_seconds, timed.cp_seconds) == (SHAPE, 1.0, 2.0)
    assert timed.noise == pytest.approx(0.1 + 0.05)


def test_one_round_says_nothing_of_noise():
    assert Timed.of(SHAPE, Times(tp=[1.0], cp=[2.0])) == Timed(SHAPE, 1.0, 2.0, None)


def test_what_is_written_is_what_is_read(tmp_path):
    timed = [Timed(SHAPE, 0.1, 0.2, 0.05), Timed(ExtendShape.of([7]), 1e-5, 2.0)]
    write_times(tmp_path / "times.json", timed)
    assert read_times(tmp_path / "times.json") == timed
    with pytest.raises(UsageError, match="--output"):
        write_times(tmp_path / "none" / "times.json", timed)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("[]", "List should have at least 1 item"),
        ('[{"extend_lens": [1], "prefix_lens": [0], "tp_seconds": NaN, "cp_seconds": 1}]', "0.tp_seconds"),
        ('[{"extend_lens": [1], "prefix_lens": [], "tp_seconds": 1, "cp_seconds": 1}]', "do not go with"),
        ('[{"extend_lens": [0], "prefix_lens": [0], "tp_seconds": 1, "cp_seconds": 1}]', "0.extend_lens.0"),
        ('[{"extend_lens": [1], "prefix_lens": [-1], "tp_seconds": 1, "cp_seconds": 1}]', "0.prefix_lens.0"),
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
