"""The answer in one figure: share, cost ratio, and how many of the study's claims hold."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hetinfer.figures.style import (
    GPU_COLORS,
    GPU_MARKERS,
    PAGE_WIDTH_IN,
    caption,
    log_axis,
    rate_axis,
    styled,
)
from hetinfer.hardware import configuration_label

FEWEST_MODELS = 2  # one model has no interval, and says nothing of others
VERDICT_STYLES: Mapping[str, tuple[str, str]] = {  # fill, hatch: told apart without colour
    "reproduced": ("#0072B2", ""),
    "reproduced-under-condition": ("#56B4E9", "//"),
    "not-reproduced": ("#D55E00", "xx"),
    "not-testable": ("#dddddd", ".."),
}
VERDICT_WORDS: Mapping[str, str] = {
    "reproduced": "reproduced",
    "reproduced-under-condition": "under a\ncondition",
    "not-reproduced": "not\nreproduced",
    "not-testable": "not\ntestable",
}


def draw_answer(shares: pd.DataFrame, costs: pd.DataFrame, tally: Mapping[str, int]) -> Figure:
    """Share of one H100, cost per token over its, and verdicts: three panels, 95 % bands.

    `shares` and `costs` are `share.describe_shares` and `cost.describe_cost_ratios` by GPU count
    and rate; GPU counts that one model ran are left out. `tally` is `claims.tally`.
    """
    with styled():
        figure, axes = plt.subplots(
            1, 3, figsize=(PAGE_WIDTH_IN, 2.5), gridspec_kw={"width_ratios": [1, 1, 0.85]}
        )
        _draw_bands(axes[0], shares, "share")
        axes[0].set(title="throughput", ylabel="share of one H100's tokens/s", ylim=(0.3, 1.15))
        _draw_bands(axes[1], costs, "cost_ratio")
        log_axis(axes[1])
        axes[1].set(title="cost per token", ylabel="over one H100's (1: as dear)", ylim=(0.1, 1.6))
        axes[1].set_yticks([0.1, 0.2, 0.5, 1])
        axes[1].minorticks_off()
        for axis in axes[:2]:
            axis.axhline(1, color="black", linewidth=0.8, linestyle=":")
        _draw_tally(axes[2], tally)
        axes[0].legend(loc="lower left")
        models = int(shares["n_models"].max())
        caption(
            figure,
            evidence="recorded, prices reference",
            n=f"{models} models at most, {sum(_counts(tally).values())} claims",
            note="means over models with 95 % intervals; prices of the study",
        )
    return figure


def _draw_bands(axis: Axes, table: pd.DataFrame, column: str) -> None:
    known = table[table["n_models"] >= FEWEST_MODELS]
    for count, group in known.groupby("gpu_count"):
        label = configuration_label("rtx-4090", int(str(count)))
        line = group.sort_values("rate_requests_per_s")
        rate, color = line["rate_requests_per_s"], GPU_COLORS[label]
        axis.fill_between(rate, line["low"], line["high"], color=color, alpha=0.2, linewidth=0)
        axis.plot(rate, line[column], color=color, marker=GPU_MARKERS[label], label=label)
    rate_axis(axis)


def _counts(tally: Mapping[str, int]) -> dict[str, int]:
    return {verdict: tally[verdict] for verdict in VERDICT_STYLES}


def _draw_tally(axis: Axes, tally: Mapping[str, int]) -> None:
    counts = _counts(tally)
    for place, (verdict, count) in enumerate(counts.items()):
        fill, hatch = VERDICT_STYLES[verdict]
        axis.barh(
            -place, count, color=fill, hatch=hatch, edgecolor="black", linewidth=0.6, height=0.7
        )
        axis.annotate(f"{count}", (count, -place), xytext=(3, -3), textcoords="offset points")
    axis.set_yticks([-place for place in range(len(counts))], [VERDICT_WORDS[v] for v in counts])
    axis.set(title="verdicts on the study", xlabel="claims", xlim=(0, 1.2 * max(counts.values())))
    axis.grid(axis="y", visible=False)
