"""A heat map of retrieval: a panel an arm, lengths across, depths down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure


def heat_map(shares: Mapping[str, Mapping[tuple[int, int], float]]) -> Figure:
    """``shares``: by arm, then by (length in tokens, depth in percent), the share of needles found."""
    lengths, depths = (_axis(shares, index) for index in (0, 1))
    width, height = 1.6 + len(shares) * (0.9 + 0.75 * len(lengths)), 1.8 + 0.4 * len(depths)
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(1, len(shares), sharey=True, squeeze=False)[0]
    for panel, (arm, by_cell) in zip(panels, shares.items(), strict=True):
        cells = [[100 * by_cell[length, depth] for length in lengths] for depth in depths]
        image = panel.imshow(cells, vmin=0, vmax=100, cmap="viridis", aspect="auto")
        panel.set_title(arm)
        panel.set_xlabel("prompt, tokens")
        panel.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths], rotation=45, ha="right")
        panel.set_yticks(range(len(depths)), [str(depth) for depth in depths])
        for row, shown in enumerate(cells):
            for column, found in enumerate(shown):
                colour = "black" if found > 60 else "white"  # viridis is light at its upper end
                panel.text(column, row, f"{found:.0f}", ha="center", va="center", color=colour, fontsize=8)
    panels[0].set_ylabel("depth of the needle, %")
    figure.colorbar(image, ax=list(panels), label="needles found, %")
    return figure


def _axis(shares: Mapping[str, Mapping[tuple[int, int], float]], index: int) -> Sequence[int]:
    return sorted({cell[index] for by_cell in shares.values() for cell in by_cell})
