"""Figures of measured campaigns: what a warm prefix cache does."""

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from hetinfer.figures.style import PAGE_WIDTH_IN, caption, log_axis, styled

VARIANTS = {"cached": "#E69F00", "uncached": "#0072B2", "fresh": "#000000"}
MARKERS = {"cached": "X", "uncached": "o", "fresh": "s"}


def draw_prefix_cache(runs: pd.DataFrame) -> Figure:
    """Median TTFT and P99 over median ITL against rate, by what the prefix cache could hold.

    `runs` is `measured.load_campaign`: one point a run, lines through the medians of replicates.
    """
    panels = (("ttft_p50_s", "median TTFT (s)"), ("itl_ratio", "P99 / median ITL"))
    with styled():
        figure, axes = plt.subplots(1, 2, figsize=(PAGE_WIDTH_IN, 2.8))
        for axis, (column, label) in zip(axes, panels, strict=True):
            sns.lineplot(
                runs, x="rate_requests_per_s", y=column, hue="variant", palette=VARIANTS,
                hue_order=list(VARIANTS), estimator="median", errorbar=None, legend=False, ax=axis,
            )  # fmt: skip
            sns.scatterplot(
                runs, x="rate_requests_per_s", y=column, hue="variant", style="variant",
                palette=VARIANTS, markers=MARKERS, hue_order=list(VARIANTS),
                style_order=list(VARIANTS), s=26, ax=axis,
            )  # fmt: skip
            axis.set_xscale("log", base=2)
            rates = sorted(runs["rate_requests_per_s"].unique())
            axis.set_xticks(rates, labels=[f"{rate:g}" for rate in rates])
            axis.minorticks_off()
            log_axis(axis)
            axis.set(xlabel="offered rate (requests/s)", ylabel=label)
            axis.legend(title="")
        note = "vLLM on a CPU, random weights; lines: medians of replicates"
        caption(figure, evidence="measured", n=f"{len(runs)} runs", note=note)
    return figure
