"""Figure of what a model's configurations cost, how late they are and what they emit."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from hetinfer.figures.style import (
    GPU_COLORS,
    GPU_MARKERS,
    PAGE_WIDTH_IN,
    caption,
    log_axis,
    rate_axis,
    styled,
)

PANELS = {
    "cost_usd_per_mtoken": "USD per Mtoken",
    "ttft_p99_s": "P99 TTFT (s)",
    "carbon_g_per_mtoken": "g CO2e per Mtoken",
}


def draw_explored(
    table: pd.DataFrame, rate_requests_per_s: float, *, ttft_target_s: float, carbon_of: str
) -> Figure:
    """Cost, P99 TTFT and carbon against offered rate at chosen terms, one line a configuration.

    `table` is `explorer.explore`; hollow points miss the target, a dotted line marks the rate
    looked at. Drawn without pyplot, for it is drawn anew at each move of a slider.
    """
    with styled():
        figure = Figure(figsize=(PAGE_WIDTH_IN, 2.9))
        axes = figure.subplots(1, len(PANELS))
        for axis, (column, label) in zip(axes, PANELS.items(), strict=True):
            axis.axvline(rate_requests_per_s, color="#999999", linestyle=":", linewidth=1)
            for name, group in table.groupby("configuration", sort=False):
                _draw_line(axis, str(name), group, column)
            _finish(axis, table[column], label)
        if np.isfinite(ttft_target_s):
            axes[1].axhline(ttft_target_s, color="black", linestyle="--", linewidth=0.8)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
        note = f"prices as chosen; carbon: {carbon_of}, inputs reference; hollow: misses the target"
        caption(figure, evidence="recorded", n=f"{len(table)} cells", note=note)
    return figure


def _draw_line(axis: Axes, name: str, group: pd.DataFrame, column: str) -> None:
    color, marker = GPU_COLORS[name], GPU_MARKERS[name]
    rate = group["rate_requests_per_s"]
    axis.plot(rate, group[column], color=color, marker=marker, label=name)
    late = group[~group["in_time"].astype(bool)]
    axis.plot(
        late["rate_requests_per_s"], late[column], linestyle="none", color=color, marker=marker,
        markerfacecolor="white",
    )  # fmt: skip
    if column == "carbon_g_per_mtoken":
        ends = group["carbon_low"], group["carbon_high"]
        axis.fill_between(rate, *ends, color=color, alpha=0.15, linewidth=0)


def _finish(axis: Axes, values: pd.Series, label: str) -> None:
    rate_axis(axis)
    log_axis(axis)
    axis.yaxis.set_minor_locator(NullLocator())
    axis.set_ylim(_whole_decades(values))
    axis.set_ylabel(label)


def _whole_decades(values: pd.Series) -> tuple[float, float]:
    """The powers of ten around the values: the axis stands still while the lines move on it."""
    logs = np.log10(values)
    return float(10 ** np.floor(logs.min())), float(10 ** np.ceil(logs.max()))
