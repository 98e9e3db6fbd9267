"""Figures of energy and carbon: per token, over grid intensity, by region, and what decides."""

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
    caption,
    log_axis,
    rate_axis,
    styled,
)
from hetinfer.footprint.carbon import Holding
from hetinfer.footprint.grid import load_grid
from hetinfer.footprint.power import POWER_ASSUMPTIONS, PowerCurve, power_at_batch_w
from hetinfer.hardware import configuration_label, find_gpu, short_name

GRID_END_G_PER_KWH = 720.0  # just beyond the dirtiest region
HOLDING_STYLES: dict[Holding, str] = {"new": "-", "owned": "--", "idle": ":"}
QUANTITY_WORDS = {
    "board_w": "board power (W)",
    "idle_w": "board idle power (W)",
    "host_busy_w": "host power (W)",
    "host_idle_w": "host idle power (W)",
    "pue": "PUE",
    "card_kg": "card embodied carbon (kg)",
    "card_lifetime_years": "card lifetime (years)",
    "host_kg": "host embodied carbon (kg)",
    "host_lifetime_years": "host lifetime (years)",
    "utilisation_frac": "utilisation",
    "g_co2_per_kwh": "grid intensity (g/kWh)",
}


def draw_energy_per_token(table: pd.DataFrame, models: list[str]) -> Figure:
    """Joules per token of the boards against offered rate, one column a power assumption.

    `table` is `energy_table`'s. Bands are intervals; open markers miss the latency target.
    """
    powers = [*POWER_ASSUMPTIONS, *sorted(set(table["power"]) - set(POWER_ASSUMPTIONS))]
    with styled():
        figure, axes = plt.subplots(
            len(models), len(powers), figsize=(PAGE_WIDTH_IN, 2.2 * len(models) + 0.3),
            sharex=True, sharey="row", squeeze=False,
        )  # fmt: skip
        for row, model in zip(axes, models, strict=True):
            for axis, power in zip(row, powers, strict=True):
                chosen = (table["model"] == model) & (table["power"] == power)
                _energy_panel(axis, table[chosen])
                rate_axis(axis)
                log_axis(axis)
                axis.set_title(f"power: {power}" if model == models[0] else "")
                axis.label_outer()
            row[0].set_ylabel(f"{short_name(model).removeprefix('DeepSeek-R1-')}\nJ per token")
        handles = {
            label: handle
            for axis in axes[:, 0]
            for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        ordered = [label for label in GPU_COLORS if label in handles]
        figure.legend(
            [handles[label] for label in ordered], ordered, loc="outside upper center",
            ncols=len(ordered),
        )  # fmt: skip
        note = "open markers: P99 TTFT misses the target; bands: 95 % of the samples"
        cells = len(table[table["model"].isin(models)].drop_duplicates(
            ["model", "gpu", "gpu_count", "rate_requests_per_s"]
        ))  # fmt: skip
        caption(figure, evidence="recorded, powers reference", n=f"{cells} cells", note=note)
    return figure


def draw_carbon_over_grid(table: pd.DataFrame, crossings: pd.DataFrame) -> Figure:
    """Carbon per million tokens against grid intensity, one panel a pair, and where lines cross.

    `table` is `carbon_findings`', `crossings` the rows `cleaner below` of `crossing_findings` for
    the same pairs. Thin lines: running alone; thick: with what making carries.
    """
    titles = crossings[["model", "rate_requests_per_s"]].drop_duplicates()
    intensity = {name: grid.g_co2_per_kwh for name, grid in load_grid().items()}
    table = table.assign(g_co2_per_kwh=table["region"].map(intensity))
    with styled():
        figure, axes = plt.subplots(
            1, len(titles), figsize=(PAGE_WIDTH_IN, 3.4), squeeze=False, sharey=True
        )
        for axis, (model, rate) in zip(axes[0], titles.itertuples(index=False), strict=True):
            of_pair = (table["model"] == model) & (table["rate_requests_per_s"] == rate)
            _carbon_panel(axis, table[of_pair])
            same = (crossings["model"] == model) & (crossings["rate_requests_per_s"] == rate)
            _mark_crossings(axis, crossings[same])
            axis.set_title(f"{short_name(model)} at {rate:g} requests/s")
            axis.set_xlabel("grid intensity (g CO2e/kWh)")
            axis.set_xlim(0, GRID_END_G_PER_KWH)
            axis.legend(fontsize=6, loc="upper left")
        axes[0, 0].set_ylim(bottom=0)
        axes[0, 0].set_ylabel("g CO2e per million tokens")
        note = "bars at the foot: 4090s cleaner than a new H100 below this intensity, 95 %"
        caption(figure, evidence="recorded, inputs reference", n=f"{len(titles)} pairs", note=note)
    return figure


def draw_cleaner_regions(table: pd.DataFrame) -> Figure:
    """Share of samples in which 4090s are the cleaner, pair by region; marked where it is sure.

    `table` is `region_table`'s, of pairs that meet the target.
    """
    names = [
        f"{configuration_label(gpu, count)}, {short_name(model)}, {rate:g}/s"
        for gpu, count, model, rate in zip(
            table["gpu"], table["gpu_count"], table["model"], table["rate_requests_per_s"],
            strict=True,
        )
    ]  # fmt: skip
    named = table.assign(name=names)
    order = named.sort_values(["gpu_count", "rate_requests_per_s", "model"])["name"].unique()
    share = named.pivot(index="name", columns="region", values="cleaner_frac")
    share = share.loc[order, list(load_grid())]
    verdict = named.pivot(index="name", columns="region", values="verdict")
    verdict = verdict.loc[share.index, share.columns]
    with styled():
        figure, axis = plt.subplots(figsize=(PAGE_WIDTH_IN, 0.6 + 0.16 * len(share)))
        image = axis.imshow(share, cmap="cividis", vmin=0, vmax=1, aspect="auto")
        for state, marker, color in (("cleaner", "o", "black"), ("dirtier", "x", "white")):
            y, x = np.nonzero((verdict == state).to_numpy())
            axis.scatter(x, y, s=8, marker=marker, color=color, linewidth=0.7)
        labels = [f"{name} {load_grid()[name].g_co2_per_kwh:.0f}" for name in share.columns]
        axis.set_xticks(range(len(labels)), labels=labels, rotation=60, ha="right", fontsize=6)
        axis.set_yticks(range(len(share)), labels=share.index, fontsize=6)
        axis.grid(visible=False)
        axis.set_xlabel("region and its grid intensity (g CO2e/kWh)")
        figure.colorbar(image, ax=axis, label="share of samples: 4090s cleaner", pad=0.01)
        note = "dot: cleaner, cross: not, in 97.5 % of the samples"
        caption(figure, evidence="recorded, inputs reference", n=f"{len(share)} pairs", note=note)
    return figure


def draw_tornado(table: pd.DataFrame, sides: tuple[str, str], shown: int = 10) -> Figure:
    """How the ratio of total carbon moves with each input alone, widest swing first.

    `table` is `tornado`'s; `sides` name the machine and what it is compared with.
    """
    names = {"machine": f"{sides[0]}: ", "against": f"{sides[1]}: ", "both": "", "grid": ""}
    rows = table.head(shown).iloc[::-1]
    labels = [
        f"{names[side]}{QUANTITY_WORDS[quantity]} {low:g} to {high:g}"
        for side, quantity, low, high in rows[["side", "quantity", "low", "high"]].to_numpy()
    ]
    with styled():
        figure, axis = plt.subplots(figsize=(PAGE_WIDTH_IN, 0.9 + 0.22 * len(rows)))
        middle = float(table["ratio_middle"].iloc[0])
        for end, color, hatch in (("low", "#56B4E9", ""), ("high", "#D55E00", "///")):
            axis.barh(
                labels, rows[f"ratio_{end}"] - middle, left=middle, height=0.6,
                color=color, hatch=hatch, edgecolor="white", label=f"input at its {end} end",
            )  # fmt: skip
        axis.axvline(middle, color="black", linewidth=0.8)
        axis.axvline(1, color="#555555", linewidth=0.8, linestyle=":")
        axis.set_xlabel(f"total carbon per token, {sides[0]} over {sides[1]} (1: equally clean)")
        axis.legend(loc="lower right")
        caption(
            figure, evidence="recorded, inputs reference", n="1 pair", note="one input at a time"
        )
    return figure


def draw_power_curve(draws: pd.DataFrame, curve: PowerCurve) -> Figure:
    """Measured board power against batch size with the fitted line, its spread, and the limit."""
    with styled():
        figure, axis = plt.subplots(figsize=(COLUMN_WIDTH_IN, 2.5))
        batches = np.geomspace(curve.batch_low, curve.batch_high, 50)
        fitted = np.array([power_at_batch_w(curve, batch) for batch in batches])
        axis.plot(batches, fitted, color="black", label="least squares")
        spread = curve.residual_sd_w
        axis.fill_between(batches, fitted - spread, fitted + spread, color="#dddddd", label="1 sd")
        for marker, (workload, group) in zip("os^v", draws.groupby("workload"), strict=False):
            axis.plot(group["batch"], group["power_w"], marker, color="#0072B2", label=workload)
        limit_w = find_gpu(curve.gpu).tdp_w
        axis.axhline(limit_w, color="#D55E00", linestyle="--", linewidth=0.9, label="card limit")
        axis.set_xscale("log", base=2)
        axis.set_xticks(sorted(set(draws["batch"])), labels=sorted(set(draws["batch"])))
        axis.minorticks_off()
        axis.set_xlabel("batch size")
        axis.set_ylabel(f"board power of {curve.gpu} (W)")
        axis.set_ylim(0, limit_w * 1.08)
        axis.legend(fontsize=6, loc="lower right")
        caption(figure, evidence=f"reference, grade {curve.grade}", n=f"{curve.n} draws")
    return figure


def _energy_panel(axis: Axes, cells: pd.DataFrame) -> None:
    for (gpu, count), group in cells.groupby(["gpu", "gpu_count"]):
        label = configuration_label(gpu, count)
        line = group.sort_values("rate_requests_per_s")
        rate, color = line["rate_requests_per_s"], GPU_COLORS[label]
        axis.plot(rate, line["j_per_token"], color=color, label=label)
        axis.fill_between(rate, line["low"], line["high"], color=color, alpha=0.25, linewidth=0)
        for meets, face in ((True, color), (False, "white")):
            part = line[line["meets_target"] == meets]
            axis.plot(
                part["rate_requests_per_s"], part["j_per_token"], GPU_MARKERS[label],
                color=color, markerfacecolor=face,
            )  # fmt: skip


def _carbon_panel(axis: Axes, cells: pd.DataFrame) -> None:
    running = cells[(cells["quantity"] == "operational carbon") & (cells["holding"] == "new")]
    for label, group in running.groupby("configuration"):
        line = group.sort_values("g_co2_per_kwh")
        axis.plot(
            line["g_co2_per_kwh"], line["value"], color=GPU_COLORS[label], linewidth=0.7,
            label=f"{label}: operational",
        )  # fmt: skip
    total = cells[(cells["quantity"] == "total carbon") & (cells["holding"] != "idle")]
    for (label, holding), group in total.groupby(["configuration", "holding"]):
        if holding == "owned" and label.endswith("H100"):
            continue  # the study's question is new H100s against cards that exist
        line = group.sort_values("g_co2_per_kwh")
        x, color = line["g_co2_per_kwh"], GPU_COLORS[label]
        axis.plot(
            x, line["value"], HOLDING_STYLES[holding], color=color, linewidth=1.7,
            label=f"{label}, {holding}: total",
        )  # fmt: skip
        axis.fill_between(x, line["low"], line["high"], color=color, alpha=0.15, linewidth=0)


def _mark_crossings(axis: Axes, crossings: pd.DataFrame) -> None:
    across = axis.get_xaxis_transform()
    for height, row in zip((0.03, 0.08, 0.13), crossings.itertuples(index=False), strict=True):
        color, end = GPU_COLORS[row.configuration], min(row.high, GRID_END_G_PER_KWH)
        style = HOLDING_STYLES[row.holding]
        axis.plot([row.low, end], [height, height], style, color=color, transform=across)
        axis.plot([row.value], [height], "D", markersize=3.5, color=color, transform=across)
        text = f"{row.holding}: everywhere" if row.low > GRID_END_G_PER_KWH else row.holding
        axis.annotate(text, (1.01, height), xycoords="axes fraction", fontsize=6, va="center")
