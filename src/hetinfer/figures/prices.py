"""Figure of what tokens cost at chosen prices."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from hetinfer.figures.style import (
    GPU_COLORS,
    GPU_MARKERS,
    PAGE_WIDTH_IN,
    caption,
    log_axis,
    rate_axis,
    styled,
)


def draw_repriced(table: pd.DataFrame, rate_requests_per_s: float) -> Figure:
    """USD per million tokens against offered rate at chosen prices, one line a configuration.

    `table` is `explorer.reprice`; a dotted line marks the rate looked at. Drawn without pyplot, for
    it is drawn anew at each move of a slider.
    """
    with styled():
        figure = Figure(figsize=(PAGE_WIDTH_IN, 3.2))
        axis = figure.subplots()
        axis.axvline(rate_requests_per_s, color="#999999", linestyle=":", linewidth=1)
        for label, group in table.groupby("configuration", sort=False):
            axis.plot(
                group["rate_requests_per_s"], group["cost_usd_per_mtoken"], label=label,
                color=GPU_COLORS[label], marker=GPU_MARKERS[label],
            )  # fmt: skip
        rate_axis(axis)
        log_axis(axis)
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.set_ylim(_whole_decades(table["cost_usd_per_mtoken"]))
        axis.set(ylabel="USD per Mtoken", title=table["model"].iloc[0])
        axis.legend(loc="upper right")
        n = f"{len(table)} cells, replicates averaged"
        caption(figure, evidence="recorded", n=n, note="prices as chosen")
    return figure


def _whole_decades(costs: pd.Series) -> tuple[float, float]:
    """The powers of ten around the costs: the axis stands still while the lines move on it."""
    logs = np.log10(costs)
    return float(10 ** np.floor(logs.min())), float(10 ** np.ceil(logs.max()))
