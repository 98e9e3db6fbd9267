"""Figures of cost: drain collapse, cost against rate with its frontier, and where rankings flip."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hetinfer.figures.style import (
    COLUMN_WIDTH_IN,
    GPU_COLORS,
    GPU_MARKERS,
    PAGE_WIDTH_IN,
    STUDY_RATES,
    caption,
    log_axis,
    rate_axis,
    styled,
)
from hetinfer.hardware import configuration_label, find_model, short_name

RATE_DASHES = ("-", (0, (6, 1.5)), "--", "-.", ":")
SCENARIO_MARKERS = ("*", "o", "s", "D")


def draw_drain_collapse(cells: pd.DataFrame, steps: float) -> Figure:
    """Duration times rate against rate times TPOT, every cell of every model, and one curve.

    If a drain is a number of decoding steps, T q = W q + steps (q TPOT), whatever the model or GPU.
    `steps` is that number; W q is the same for all runs.
    """
    load = cells["rate_requests_per_s"] * cells["tpot_mean_s"]
    scaled = cells["duration_s"] * cells["rate_requests_per_s"]
    window = (cells["last_arrival_s"] * cells["rate_requests_per_s"]).iloc[0]
    labels = _labels(cells)
    line = np.geomspace(load.min(), load.max(), 100)
    with styled():
        figure, axis = plt.subplots(figsize=(COLUMN_WIDTH_IN, 2.9))
        axis.plot(line, window + steps * line, color="#777777", zorder=1)
        for label in [name for name in GPU_COLORS if name in set(labels)]:
            own = labels == label
            axis.plot(
                load[own], scaled[own], linestyle="none", label=label, alpha=0.9,
                color=GPU_COLORS[label], marker=GPU_MARKERS[label],
            )  # fmt: skip
        axis.set_xscale("log")
        log_axis(axis)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_yticks([200, 500, 1000, 2000, 4000], labels=["200", "500", "1000", "2000", "4000"])
        axis.minorticks_off()
        axis.set(xlabel="offered rate x TPOT (requests a step)")
        axis.set_ylabel("duration x offered rate (requests)")
        axis.legend()
        n = f"{len(cells)} cells of {cells['model'].nunique()} models"
        note = f"line: {window:.1f} + {steps:.0f} q TPOT"
        caption(figure, evidence="recorded", n=n, note=note)
    return figure


def draw_cost_curves(costs: pd.DataFrame) -> Figure:
    """USD per million tokens against offered rate, a panel a model; filled where none beats it.

    `costs` has cost_usd_per_mtoken and on_frontier: no other configuration of the model at the rate
    is at least as good in cost, P99 TTFT and throughput and better in one.
    """
    models = sorted(set(costs["model"]), key=lambda name: (find_model(name).parameters_b, name))
    with styled():
        figure, axes = plt.subplots(
            1, len(models), figsize=(PAGE_WIDTH_IN, 2.6), sharex=True, sharey=True
        )
        for axis, model in zip(axes, models, strict=True):
            for (gpu, count), group in costs[costs["model"] == model].groupby(["gpu", "gpu_count"]):
                _cost_line(axis, group, configuration_label(gpu, count))
            rate_axis(axis)
            log_axis(axis)
            axis.set_xlabel("rate (1/s)")
            axis.set_title(short_name(model).replace("DeepSeek-R1-Distill-", ""), fontsize=7)
        axes[0].set_ylabel("USD per million tokens")
        _legend_above(figure, list(axes))
        n = f"{len(costs)} cells, replicates averaged"
        note = "filled: no configuration beats it in cost, P99 TTFT and throughput"
        caption(figure, evidence="recorded, prices reference", n=n, note=note)
    return figure


def draw_break_even(flips: pd.DataFrame, scenarios: Mapping[str, float]) -> Figure:
    """Price of a 4090 over an H100's at which they cost the same, against rate, a panel a target.

    `flips` is `cost.break_even_prices`: a point a model; filled where the 4090s meet the target of
    P99 TTFT. `scenarios` names price ratios; above its line a point's 4090s are cheaper.
    """
    targets = sorted(flips["ttft_target_s"].unique(), reverse=True)
    with styled():
        figure, axes = plt.subplots(
            1, len(targets), figsize=(PAGE_WIDTH_IN, 2.9), sharex=True, sharey=True
        )
        for axis, target_s in zip(axes, targets, strict=True):
            own = flips[flips["ttft_target_s"] == target_s]
            for count, group in own.groupby("gpu_count"):
                _break_even_points(axis, group, configuration_label("rtx-4090", count))
            for ratio in scenarios.values():
                axis.axhline(ratio, color="black", linewidth=0.6, linestyle=":")
            rate_axis(axis)
            log_axis(axis)
            axis.set_yticks([0.05, 0.1, 0.2, 0.5, 1], labels=["0.05", "0.1", "0.2", "0.5", "1"])
            axis.minorticks_off()
            axis.set_title(f"P99 TTFT <= {target_s:g} s" if np.isfinite(target_s) else "no target")
        for name, ratio in scenarios.items():
            axes[-1].annotate(
                name, (1.02, ratio), xycoords=axes[-1].get_yaxis_transform(), fontsize=6,
                va="center", annotation_clip=False,
            )  # fmt: skip
        axes[0].set_ylabel("4090 price / H100 price, each per hour")
        _legend_above(figure, list(axes))
        n = f"{len(flips) // len(targets)} pairs"
        note = "below a point its 4090s cost less per token; hollow: they miss the target"
        caption(figure, evidence="recorded, prices reference", n=n, note=note)
    return figure


def draw_price_plane(flips: pd.DataFrame, prices: Mapping[str, Mapping[str, float]]) -> Figure:
    """Prices of H100 and 4090 at which the ranking flips, a line a rate, a panel a GPU count.

    Below a line the 4090s cost less per token, at the models' mean share; points are price lists.
    """
    counts = sorted(flips["gpu_count"].unique())
    highest = 1.15 * max(price["h100-pcie"] for price in prices.values())
    mean = flips.groupby(["gpu_count", "rate_requests_per_s"])["break_even"].mean()
    with styled():
        figure, axes = plt.subplots(
            1, len(counts), figsize=(PAGE_WIDTH_IN, 2.7), sharex=True, sharey=True
        )
        for axis, count in zip(axes, counts, strict=True):
            label = configuration_label("rtx-4090", count)
            for dashes, rate in zip(RATE_DASHES, STUDY_RATES, strict=True):
                axis.plot(
                    [0, highest], [0, highest * mean[(count, rate)]], color="#555555",
                    linestyle=dashes, linewidth=1, label=f"{rate}/s",
                )  # fmt: skip
            for marker, (name, price) in zip(SCENARIO_MARKERS, prices.items(), strict=False):
                axis.plot(
                    price["h100-pcie"], price["rtx-4090"], linestyle="none", color="#D55E00",
                    markeredgecolor="black", markeredgewidth=0.5, marker=marker, markersize=6,
                    label=name,
                )  # fmt: skip
            axis.set(title=label, xlim=(0, highest), ylim=(0, 1.2), xlabel="H100 (USD/h)")
        axes[0].set_ylabel("RTX 4090 (USD/h)")
        _legend_above(figure, list(axes))
        n = f"{flips['model'].nunique()} models"
        note = "below a line the 4090s cost less per token at that rate"
        caption(figure, evidence="recorded, prices reference", n=n, note=note)
    return figure


def _cost_line(axis: Axes, group: pd.DataFrame, label: str) -> None:
    ordered = group.sort_values("rate_requests_per_s")
    style: dict[str, Any] = {"color": GPU_COLORS[label], "marker": GPU_MARKERS[label]}
    rate, cost = ordered["rate_requests_per_s"], ordered["cost_usd_per_mtoken"]
    axis.plot(rate, cost, markerfacecolor="white", linewidth=0.9, **style)
    best = ordered["on_frontier"]
    axis.plot(rate[best], cost[best], linestyle="none", label=label, **style)


def _break_even_points(axis: Axes, group: pd.DataFrame, label: str) -> None:
    style: dict[str, Any] = {"color": GPU_COLORS[label], "marker": GPU_MARKERS[label]}
    style["linestyle"] = "none"
    meets = group["meets_4090"]
    axis.plot(
        group.loc[~meets, "rate_requests_per_s"], group.loc[~meets, "break_even"],
        markerfacecolor="white", markeredgewidth=0.7, **style,
    )  # fmt: skip
    axis.plot(
        group.loc[meets, "rate_requests_per_s"], group.loc[meets, "break_even"],
        label=label, **style,
    )  # fmt: skip
    mean = group.groupby("rate_requests_per_s")["break_even"].mean()
    axis.plot(mean.index, mean, color=GPU_COLORS[label], linewidth=0.8)


def _labels(cells: pd.DataFrame) -> pd.Series:
    pairs = zip(cells["gpu"], cells["gpu_count"], strict=True)
    return pd.Series([configuration_label(*pair) for pair in pairs], index=cells.index)


def _legend_above(figure: Figure, axes: list[Axes]) -> None:
    handles = {
        text: handle
        for axis in axes
        for handle, text in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(), handles, loc="outside upper center", ncols=len(handles), fontsize=6.5
    )
