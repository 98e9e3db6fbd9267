"""Figures of the engine simulator: parity with the recorded runs, and what steady state adds."""

from collections.abc import Mapping, Sequence
from typing import Literal

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hetinfer.figures.style import (
    COLUMN_WIDTH_IN,
    GPU_COLORS,
    GPU_MARKERS,
    PAGE_WIDTH_IN,
    caption,
    log_axis,
    parity_lines,
    rate_axis,
    styled,
)
from hetinfer.hardware import configuration_label, short_name
from hetinfer.runs import CONFIGURATION

PARITY_PANELS: Mapping[str, str] = {
    "throughput_requests_per_s": "throughput (requests/s)",
    "tpot_p50_s": "median TPOT (s)",
    "ttft_p50_s": "median TTFT (s)",
    "ttft_p99_s": "P99 TTFT (s)",
}
CACHE_LINES: Mapping[str, Literal["-", "--"]] = {"cold": "-", "warm": "--"}


def draw_parity(parity: pd.DataFrame) -> Figure:
    """Simulated against recorded, one panel a statistic; hollow: fitted, filled: validation."""
    with styled():
        figure, grid = plt.subplots(2, 2, figsize=(PAGE_WIDTH_IN, 5.4))
        for axis, (name, label) in zip(grid.ravel(), PARITY_PANELS.items(), strict=True):
            _parity_panel(axis, parity[parity["statistic"] == name])
            axis.set_title(label)
            axis.set_xlabel("recorded")
        for axis in grid[:, 0]:
            axis.set_ylabel("simulated")
        labels = [name for name in GPU_COLORS if name in set(_labels(parity))]
        handles = [_handle(name) for name in labels]
        figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
        configurations = len(parity[CONFIGURATION].drop_duplicates())
        caption(
            figure,
            evidence="simulated against recorded",
            n=f"{configurations} configurations x 5 rates",
            note="hollow: rates 1, 8, 32 (fitted); filled: 4, 16 (validation); lines: equal, 10 %",
        )
    return figure


def draw_simulated_throughput(parity: pd.DataFrame, model: str) -> Figure:
    """Achieved against offered rate of one model: points recorded, lines simulated."""
    with styled():
        figure, axis = plt.subplots(figsize=(COLUMN_WIDTH_IN, 2.9))
        cells = parity[
            (parity["model"] == model) & (parity["statistic"] == "throughput_requests_per_s")
        ]
        for (gpu, count), own in cells.groupby(["gpu", "gpu_count"]):
            label = configuration_label(gpu, count)
            ordered = own.sort_values("rate_requests_per_s")
            rates = ordered["rate_requests_per_s"]
            axis.plot(rates, ordered["simulated"], color=GPU_COLORS[label], label=label)
            axis.plot(rates, ordered["recorded"], GPU_MARKERS[label], color=GPU_COLORS[label])
        rate_axis(axis)
        axis.set_ylim(bottom=0)
        axis.set_ylabel("achieved rate (requests/s)")
        axis.set_title(short_name(model))
        axis.legend()
        caption(figure, evidence="recorded (points), simulated (lines)", n="200 prompts a run")
    return figure


def draw_latency_curves(
    curves: pd.DataFrame, models: Sequence[str], targets_s: list[float]
) -> Figure:
    """P99 TTFT in steady state against offered rate, cold and warm, with the targets as lines."""
    with styled():
        figure, axes = plt.subplots(
            1, len(models), figsize=(PAGE_WIDTH_IN, 3.0), sharey=True, squeeze=False
        )
        for axis, model in zip(axes[0], models, strict=True):
            for target_s in targets_s:
                axis.axhline(target_s, color="#999999", linewidth=0.7, linestyle=":")
            _curve_panel(axis, curves[curves["model"] == model])
            axis.set_title(short_name(model))
        axes[0][0].set_ylabel("P99 TTFT (s)")
        axes[0][0].set_ylim(0.02, 20)
        caches = [
            Line2D([], [], color="#000000", linestyle=style, label=name)
            for name, style in CACHE_LINES.items()
        ]
        labels = [name for name in GPU_COLORS if name in set(_labels(curves))]
        handles = [*(_handle(name) for name in labels), *caches]
        figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
        requests = int(curves["requests"].iloc[0])
        note = "several 4090s with a host that keeps up; up to the first overloaded rate"
        caption(figure, evidence="simulated", n=f"{requests:,} requests a rate", note=note)
    return figure


def draw_drain(drain: pd.DataFrame, model: str, rate_requests_per_s: float) -> Figure:
    """Achieved rate of a run against how many prompts it sends: short runs measure their drain."""
    with styled():
        figure, axis = plt.subplots(figsize=(COLUMN_WIDTH_IN, 2.7))
        for (gpu, count), own in drain[drain["model"] == model].groupby(["gpu", "gpu_count"]):
            label = configuration_label(gpu, count)
            axis.plot(
                own["prompts"], own["throughput_requests_per_s"], marker=GPU_MARKERS[label],
                color=GPU_COLORS[label], label=label,
            )  # fmt: skip
        axis.axhline(rate_requests_per_s, color="#999999", linewidth=0.7, linestyle=":")
        axis.set_xscale("log")
        counts = sorted(set(drain["prompts"]))
        axis.set_xticks(counts, labels=[f"{count:,}" for count in counts])
        axis.minorticks_off()
        axis.set_ylim(bottom=0)
        axis.set_xlabel("prompts in the run")
        axis.set_ylabel("achieved rate (requests/s)")
        axis.set_title(f"{short_name(model)}, offered {rate_requests_per_s:g}/s, cold")
        axis.legend()
        caption(figure, evidence="simulated", n="one run a point")
    return figure


def draw_capacity(capacities: pd.DataFrame) -> Figure:
    """Capacity by configuration and P99 TTFT target; filled cold, hollow warm, bars the range."""
    targets_s = sorted(set(capacities["ttft_p99_target_s"]))
    names = _row_names(capacities)
    with styled():
        figure, axes = plt.subplots(
            1, len(targets_s), figsize=(PAGE_WIDTH_IN, 0.24 * len(names) + 1.3),
            sharey=True, sharex=True,
        )  # fmt: skip
        for axis, target_s in zip(np.atleast_1d(axes), targets_s, strict=True):
            own = capacities[capacities["ttft_p99_target_s"] == target_s]
            _capacity_panel(axis, own, names)
            axis.set_title(f"TTFT ≤ {1000 * target_s:g} ms")
            axis.set_xlabel("requests/s")
        axes = np.atleast_1d(axes)
        axes[0].set_yticks(range(len(names)), labels=names)
        axes[0].invert_yaxis()
        axes[0].set_xlim(left=-0.5)
        note = "P99 TTFT; filled: cold; hollow: warm; bars: range over reconstructions and seeds"
        caption(figure, evidence="simulated", n=f"{len(names)} configurations", note=note)
    return figure


def _parity_panel(axis: Axes, cells: pd.DataFrame) -> None:
    low = cells[["simulated", "recorded"]].min(axis=None) / 1.3
    high = cells[["simulated", "recorded"]].max(axis=None) * 1.3
    parity_lines(axis, low, high)
    for (gpu, count, which), own in cells.groupby(["gpu", "gpu_count", "set"]):
        label = configuration_label(gpu, count)
        face = GPU_COLORS[label] if which == "validation" else "none"
        axis.plot(
            own["recorded"], own["simulated"], GPU_MARKERS[label], color=GPU_COLORS[label],
            markerfacecolor=face, markersize=3.5, markeredgewidth=0.8,
        )  # fmt: skip
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    log_axis(axis)


def _curve_panel(axis: Axes, curves: pd.DataFrame) -> None:
    for (gpu, count, cache), own in curves.groupby(["gpu", "gpu_count", "cache"]):
        stable = own[~own["overloaded"]].sort_values("rate_requests_per_s")
        label = configuration_label(gpu, count)
        axis.plot(
            stable["rate_requests_per_s"], stable["ttft_p99_s"], color=GPU_COLORS[label],
            linestyle=CACHE_LINES[cache], marker=GPU_MARKERS[label], markersize=2.5,
        )  # fmt: skip
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_xlabel("offered rate (requests/s)")
    log_axis(axis)


def _capacity_panel(axis: Axes, capacities: pd.DataFrame, names: list[str]) -> None:
    for row in capacities.itertuples():
        label = configuration_label(row.gpu, row.gpu_count)
        place = names.index(_row_name(row.model, label)) + (0.15 if row.cache == "warm" else -0.15)
        face = GPU_COLORS[label] if row.cache == "cold" else "none"
        axis.plot([row.low, row.high], [place, place], color=GPU_COLORS[label], linewidth=1.0)
        axis.plot(
            row.capacity_requests_per_s, place, GPU_MARKERS[label], color=GPU_COLORS[label],
            markerfacecolor=face if row.cache == "cold" else "#ffffff", markersize=4,
        )  # fmt: skip


def _row_names(capacities: pd.DataFrame) -> list[str]:
    rows = capacities[CONFIGURATION].drop_duplicates()
    return [_row_name(r.model, configuration_label(r.gpu, r.gpu_count)) for r in rows.itertuples()]


def _row_name(model: str, label: str) -> str:
    return f"{short_name(model).replace('DeepSeek-R1-Distill-', 'R1-')}, {label}"


def _labels(table: pd.DataFrame) -> list[str]:
    rows = table[["gpu", "gpu_count"]].drop_duplicates()
    return [configuration_label(row.gpu, row.gpu_count) for row in rows.itertuples()]


def _handle(label: str) -> Line2D:
    return Line2D(
        [], [], color=GPU_COLORS[label], marker=GPU_MARKERS[label], linestyle="none", label=label
    )
