"""Figure of the simulator beside a real engine that was measured."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from hetinfer.figures.style import PAGE_WIDTH_IN, caption, parity_lines, styled

PANELS: Mapping[str, str] = {
    "throughput_requests_per_s": "throughput (requests/s)",
    "tpot_p50_s": "median TPOT (s)",
    "ttft_p50_s": "median TTFT (s)",
}
VARIANTS: Mapping[str, tuple[str, str]] = {
    "cached": ("o", "#000000"),
    "uncached": ("s", "#D55E00"),
    "fresh": ("^", "#56B4E9"),
}


def draw_real_engine(table: pd.DataFrame) -> Figure:
    """Simulated against measured, one panel a statistic; hollow: fitted, filled: predicted."""
    with styled():
        figure, axes = plt.subplots(1, len(PANELS), figsize=(PAGE_WIDTH_IN, 2.8))
        for axis, (name, label) in zip(axes, PANELS.items(), strict=True):
            _panel(axis, table[table["statistic"] == name])
            axis.set_title(label)
            axis.set_xlabel("measured")
        axes[0].set_ylabel("simulated")
        handles = [
            Line2D([], [], color=color, marker=marker, linestyle="none", label=name)
            for name, (marker, color) in VARIANTS.items()
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
        runs = len(table[["variant", "rate_requests_per_s", "replicate"]].drop_duplicates())
        note = "vLLM on a CPU; hollow: fitted; filled: predicted; lines: equal, 10 %"
        caption(figure, evidence="simulated against measured", n=f"{runs} runs", note=note)
    return figure


def _panel(axis: Axes, cells: pd.DataFrame) -> None:
    low = cells[["simulated", "measured"]].min(axis=None) / 1.2
    high = cells[["simulated", "measured"]].max(axis=None) * 1.2
    parity_lines(axis, low, high)
    for (variant, which), own in cells.groupby(["variant", "set"]):
        marker, color = VARIANTS[variant]
        axis.plot(
            own["measured"], own["simulated"], marker, color=color, markersize=4,
            markerfacecolor="none" if which == "fitted" else color, markeredgewidth=0.8,
        )  # fmt: skip
    axis.set_xscale("log")
    axis.set_yscale("log")
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_locator(LogLocator(subs=(1, 2, 5)))
        side.set_major_formatter(lambda value, _: f"{value:g}")
        side.set_minor_locator(NullLocator())
