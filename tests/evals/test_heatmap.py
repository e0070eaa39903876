"""The heat map shows each cell where it belongs."""

from evals.heatmap import heat_map

OFF = {(8192, 0): 1.0, (8192, 50): 0.75, (8192, 100): 1.0, (16384, 0): 0.5, (16384, 50): 0.0, (16384, 100): 0.25}
ON = {cell: (1 + share) / 2 for cell, share in OFF.items()}


def test_depths_go_down_and_lengths_across_in_a_panel_an_arm():
    figure = heat_map({"baseline": OFF, "candidate": ON})
    off, on, bar = figure.axes
    assert [panel.get_title() for panel in (off, on)] == ["baseline", "candidate"]
    assert off.images[0].get_array().tolist() == [[100, 50], [75, 0], [100, 25]]
    assert on.images[0].get_array().tolist() == [[100, 75], [87.5, 50], [100, 62.5]]
    assert [text.get_text() for text in off.texts] == ["100", "50", "75", "0", "100", "25"]
    assert [label.get_text() for label in off.get_xticklabels()] == ["8,192", "16,384"]
    assert [label.get_text() for label in off.get_yticklabels()] == ["0", "50", "100"]
    # One scale for all panels, whatever the arms found.
    assert {panel.images[0].get_clim() for panel in (off, on)} == {(0, 100)}
    assert bar.get_ylabel() == "needles found, %"
