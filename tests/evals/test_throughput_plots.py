"""The plots: what is drawn where."""

import pytest
from matplotlib import image

from evals.throughput_goals import Figures
from evals.throughput_plots import frontier, ratios, write
from tests.evals.throughput_fakes import measurement, setup

MEASURED = [
    measurement(arm, length, concurrency, total=total * concurrency, ttft=ttft, e2e=1000.0 * concurrency)
    for arm, total, ttft in (("unpatched-off", 100.0, 80.0), ("off", 100.0, 80.0), ("sharded", 150.0, 40.0))
    for length in (1024, 4096)
    for concurrency in (16, 1, 4)
]


def curves(panel):
    """Label and points of each curve of two or more points that is no rule across the panel."""
    return {
        line.get_label(): [tuple(map(float, point)) for point in line.get_xydata()]
        for line in panel.lines
        if not line.get_label().startswith("_")
    }


def test_ratios_to_cp_off_by_concurrency_and_length():
    figure = ratios(Figures(MEASURED), setup())
    assert len(figure.axes) == 4
    off_throughput, off_ttft, throughput, ttft = figure.axes
    assert (off_throughput.get_ylabel(), throughput.get_ylabel()) == ("off", "sharded")
    for panel, ratio in ((off_throughput, 1.0), (off_ttft, 1.0), (throughput, 1.5), (ttft, 2.0)):
        assert curves(panel) == {length: [(1.0, ratio), (4.0, ratio), (16.0, ratio)] for length in ("1,024", "4,096")}


def test_the_patched_off_stands_in_for_a_missing_unpatched_one():
    figures = Figures(m for m in MEASURED if m.point.arm != "unpatched-off")
    figure = ratios(figures, setup())
    assert [panel.get_ylabel() for panel in figure.axes[::2]] == ["sharded"]
    assert "that of off" in figure.axes[0].get_title()


@pytest.mark.parametrize("arms", [["sharded"], ["unpatched-off"]])
def test_without_two_arms_there_is_no_ratio(arms):
    assert ratios(Figures(m for m in MEASURED if m.point.arm in arms), setup()) is None


def test_the_frontier_is_throughput_per_gpu_against_tokens_a_second_of_a_user():
    figure = frontier(Figures(MEASURED), setup(tp_size=4))
    short, long = figure.axes
    assert "output tokens / median E2E latency" in short.get_xlabel()
    assert [panel.get_title() for panel in (short, long)] == ["1,024 prompt tokens", "4,096 prompt tokens"]
    for panel in (short, long):
        found = curves(panel)
        assert list(found) == ["unpatched-off", "off", "sharded"]
        assert found["sharded"] == [(512.0, 37.5), (128.0, 150.0), (32.0, 600.0)]
        assert [text.get_text() for text in panel.texts] == ["1", "16"] * 3


def test_a_point_that_was_not_measured_leaves_the_others():
    figures = Figures(m for m in MEASURED if (m.point.arm, m.point.concurrency) != ("sharded", 4))
    assert curves(ratios(figures, setup()).axes[2])["1,024"] == [(1.0, 1.5), (16.0, 1.5)]
    assert len(curves(frontier(figures, setup()).axes[0])["sharded"]) == 2


def test_a_picture_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    figure = frontier(Figures(MEASURED), setup())
    path = tmp_path / "frontier.png"
    write(figure, path)
    assert image.imread(path).shape[:2] == tuple(round(inches * 150) for inches in figure.get_size_inches()[::-1])
    before = path.read_bytes()
    monkeypatch.setattr(figure, "savefig", lambda file, **_: file.write(b"half") and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write(figure, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
