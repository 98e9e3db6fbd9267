"""Figures of fleets: cost by tier, by policy and by availability, and cost against carbon."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hetinfer.figures.style import COLUMN_WIDTH_IN, GPU_COLORS, PAGE_WIDTH_IN, caption, styled

BAR_WIDTH = 0.27
LINE_COLORS = ("#000000", "#0072B2", "#D55E00", "#E69F00")
# by column of the table: label, colour, hatch
FLEETS = {
    "enterprise_usd_per_h": ("H100s alone", GPU_COLORS["1x H100"], ""),
    "consumer_usd_per_h": ("4090s alone", GPU_COLORS["1x 4090"], ""),
    "best_usd_per_h": ("cheapest", GPU_COLORS["8x 4090"], "///"),
}
BAR_STYLES = {label: (color, hatch) for label, color, hatch in FLEETS.values()}


def draw_fleet_costs(table: pd.DataFrame) -> Figure:
    """Cost of the cheapest checked fleets by price list: a row a model and target, a column a mix.

    `table` is `compare_fleets`'. No bar: that tier cannot keep the targets. A star marks the cases
    in which the cheapest fleet is mixed, a line the fluid optimum.
    """
    rows = table[["model", "latency"]].drop_duplicates().to_numpy()
    mixes = table["mix"].unique()
    with styled():
        figure, axes = plt.subplots(
            len(rows), len(mixes), figsize=(PAGE_WIDTH_IN, 1.5 * len(rows) + 0.6),
            sharex=True, sharey="row", squeeze=False,
        )  # fmt: skip
        for axis, mix in zip(axes[0], mixes, strict=True):
            axis.set_title(mix)
        for line, (model, latency) in zip(axes, rows, strict=True):
            for axis, mix in zip(line, mixes, strict=True):
                own = (table["model"] == model) & (table["latency"] == latency)
                _cost_panel(axis, table[own & (table["mix"] == mix)])
            name = model.removeprefix("DeepSeek-R1-")
            line[0].set_ylabel(f"{name}\n{latency} targets\nUSD per h")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(handles))
        caption(
            figure, evidence="simulated, prices reference", n=f"{len(table)} cases",
            note="star: the cheapest fleet is mixed; no bar: that tier cannot keep the targets",
        )  # fmt: skip
    return figure


def draw_policy_costs(table: pd.DataFrame) -> Figure:
    """Cost of the cheapest fleet that keeps all targets under each policy, beside the optimum.

    `table` is `compare_policies`'.
    """
    with styled():
        figure, axis = plt.subplots(figsize=(COLUMN_WIDTH_IN, 2.6))
        places = np.arange(len(table))[::-1]
        axis.barh(places, table["usd_per_h"], color=GPU_COLORS["1x 4090"])
        for place, row in zip(places, table.itertuples(index=False), strict=True):
            text = _times(row.fleet)
            end = 0.0 if np.isnan(row.usd_per_h) else row.usd_per_h
            axis.annotate(
                text, (end, place), (3, 0), textcoords="offset points", va="center", size=6
            )
        bound = float((table["usd_per_h"] / table["over_bound"]).median())
        axis.axvline(bound, color="black", linestyle="--", label="fluid optimum")
        axis.set_yticks(places, table["policy"])
        axis.set_xlim(right=1.6 * table["usd_per_h"].max())
        axis.set_xlabel("USD per h")
        axis.grid(visible=False, axis="y")
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, 1.15))
        caption(figure, evidence="simulated, prices reference", n=f"{len(table)} policies")
    return figure


def draw_reclaim(table: pd.DataFrame) -> Figure:
    """What owners taking cards back costs: USD an hour, and attainment if no card is added.

    `table` is `reclaim_table`'; one line a notice.
    """
    with styled():
        figure, (cost, kept) = plt.subplots(1, 2, figsize=(PAGE_WIDTH_IN, 2.4))
        styles = zip("os^v", ("-", "--", ":", "-."), LINE_COLORS, strict=True)
        for (notice_s, own), (marker, dash, color) in zip(
            table.groupby("notice_s"), styles, strict=False
        ):
            line = own.sort_values("available_frac")
            style = {"marker": marker, "linestyle": dash, "color": color, "fillstyle": "none"}
            style |= {"label": f"{notice_s:g} s notice"}
            cost.plot(line["available_frac"], line["usd_per_h"], **style)
            kept.plot(line["available_frac"], line["fixed_attainment_frac"], **style)
        cost.set_ylabel("USD per h of a fleet that\nkeeps all targets")
        kept.set_ylabel("lowest attainment of the fleet\nthat needs no spare card")
        for axis in (cost, kept):
            axis.set_xlabel("share of time that a 4090 is there")
        cost.set_ylim(bottom=0)
        kept.legend()
        caption(figure, evidence="simulated, prices reference", n=f"{len(table)} ownerships")
    return figure


def draw_frontier(table: pd.DataFrame) -> Figure:
    """Cost against carbon of checked plans, one line an attainment target.

    `table` is `frontier`'. Filled: a mixed fleet.
    """
    with styled():
        figure, axis = plt.subplots(figsize=(COLUMN_WIDTH_IN, 2.9))
        for (wanted, own), color, marker in zip(
            table.groupby("attainment_target_frac"), LINE_COLORS, "osv^", strict=False
        ):
            line = own.sort_values("usd_per_h")
            axis.plot(line["usd_per_h"], line["kg_per_h"], color=color, alpha=0.6)
            for mixed, part in line.groupby("mixed"):
                axis.scatter(
                    part["usd_per_h"], part["kg_per_h"], marker=marker, edgecolor=color,
                    facecolor=color if mixed else "white", zorder=3,
                    label=f"{100 * wanted:g} % in time" if mixed == line["mixed"].iloc[0] else None,
                )  # fmt: skip
        axis.set_xlabel("USD per h")
        axis.set_ylabel("kg CO2e per h")
        axis.set_ylim(bottom=0)
        axis.legend()
        note = "filled: mixed fleet"
        caption(figure, evidence="simulated, prices reference", n=f"{len(table)} plans", note=note)
    return figure


def draw_planned(served: pd.DataFrame, costs: pd.DataFrame) -> Figure:
    """Which configuration serves what of each class in a plan, and what its fleet and others cost.

    `served` and `costs` are the explorer's `served_table` and `cost_table`. Drawn without pyplot,
    for it is drawn anew at each move of a slider.
    """
    with styled():
        figure = Figure(figsize=(PAGE_WIDTH_IN, 1.2 + 0.2 * served["class"].nunique()))
        load, cost = figure.subplots(1, 2, width_ratios=(3, 2))
        _stack_classes(load, served)
        labels = [f"{row.label}\n{_times(row.fleet)}" for row in costs.itertuples(index=False)]
        places = np.arange(len(costs))[::-1]
        for place, label, usd_per_h in zip(places, costs["label"], costs["usd_per_h"], strict=True):
            color, hatch = BAR_STYLES[label]
            cost.barh(place, usd_per_h, color=color, hatch=hatch, edgecolor="white")
        cost.set_yticks(places, labels)
        cost.set_ylim(-0.6, len(costs) - 0.4)
        cost.set_xlabel("USD per h")
        for axis in (load, cost):
            axis.grid(visible=False, axis="y")
        n, note = f"{served['class'].nunique()} classes", "planned, not checked by simulation"
        caption(figure, evidence="simulated, prices and powers reference", n=n, note=note)
    return figure


def _cost_panel(axis: Axes, cells: pd.DataFrame) -> None:
    places = np.arange(len(cells), dtype=float)
    for shift, (column, (label, color, hatch)) in enumerate(FLEETS.items()):
        at = places + (shift - 1) * BAR_WIDTH
        edge = "white" if hatch else color
        axis.bar(
            at, cells[column], BAR_WIDTH, color=color, hatch=hatch, edgecolor=edge, label=label
        )
    axis.hlines(
        cells["bound_usd_per_h"], places - 0.45, places + 0.45, color="#555555", linestyle="--",
        linewidth=0.9, label="fluid optimum",
    )  # fmt: skip
    mixed = cells["mixed"].to_numpy(bool)
    if mixed.any():
        axis.plot(
            places[mixed] + BAR_WIDTH, cells.loc[mixed, "best_usd_per_h"] + 0.25, "k*",
            markersize=5, linestyle="none",
        )  # fmt: skip
    axis.set_xticks(places, [name.replace("-", "\n") for name in cells["prices"]])
    axis.grid(visible=False, axis="x")


def _stack_classes(axis: Axes, served: pd.DataFrame) -> None:
    """Bars of requests per second, a class a bar, a configuration a part of it."""
    names = served["class"].unique()
    places = dict(zip(names, np.arange(len(names))[::-1], strict=True))
    ends = dict.fromkeys(names, 0.0)
    for configuration, color in GPU_COLORS.items():
        own = served[served["configuration"] == configuration]
        if own.empty:
            continue
        axis.barh(
            own["class"].map(places), own["requests_per_s"], left=own["class"].map(ends),
            color=color, edgecolor="white", label=configuration,
        )  # fmt: skip
        ends |= {
            name: ends[name] + rate
            for name, rate in zip(own["class"], own["requests_per_s"], strict=True)
        }
    axis.set_yticks(list(places.values()), list(places))
    axis.set_xlabel("requests/s")
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(GPU_COLORS))


def _times(fleet: str) -> str:
    return fleet.replace(", ", " + ").replace(" of ", " × ") or "none keeps the targets"
