"""The learning curve: windows of steps, and what is written."""

import csv

from evals import recall_curve
from evals.recall_training import Point

POINTS = [
    *(Point("attention", step, 32 if step < 30 else 64, float(step), 1.0, step / 40, 0.5 * step) for step in range(40)),
    *(Point("indexer", step, 64, 2.0, None, None, 20.0 + step) for step in range(5)),
]


def test_windows_keep_to_a_stage_and_a_length():
    averaged = list(recall_curve.averaged(POINTS))
    assert [(p.stage, p.length, p.step) for p in averaged] == [
        *(("attention", 32, 19), ("attention", 32, 29), ("attention", 64, 39), ("indexer", 64, 4)),
    ]
    assert [p.loss for p in averaged] == [9.5, 24.5, 34.5, 2.0]
    assert averaged[0].recall == 9.5 / 40
    assert averaged[-1].recall is None


def test_table_and_picture(tmp_path):
    recall_curve.write(POINTS, tmp_path / "curve.csv")
    rows = list(csv.DictReader((tmp_path / "curve.csv").open()))
    assert list(rows[1].values()) == ["attention", "29", "32", "24.5", "1", "0.6125", "14.5"]
    assert rows[3]["recall"] == ""
    recall_curve.draw(POINTS, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
