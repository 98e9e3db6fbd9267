"""Figures of latency and goodput against the offered rate, one panel a model."""

from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np
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
from hetinfer.hardware import configuration_label, find_model, short_name


def draw_ttft_p99(cells: pd.DataFrame, targets_s: list[float]) -> Figure:
    """P99 time to first token against offered rate, with the targets as lines; logarithmic."""

    def finish(axis: Axes) -> None:
        for target_s in targets_s:
            axis.axhline(target_s, color="#999999", linewidth=0.7, linestyle=":")
            axis.annotate(
                f"{1000 * target_s:g} ms", (1, target_s), fontsize=6, color="#555555",
                textcoords="offset points", xytext=(-3, 1.5),
            )  # fmt: skip
        log_axis(axis)

    return _panels(cells, "ttft_p99_s", "P99 TTFT (s)", finish)


def draw_goodput(cells: pd.DataFrame) -> Figure:
    """Requests per second that met TTFT <= 2 s, against offered rate."""
    return _panels(cells, "goodput_requests_per_s", "goodput (requests/s)", _from_zero)


def draw_cost_per_good_token(cells: pd.DataFrame) -> Figure:
    """USD per million tokens of requests that met TTFT <= 2 s, against offered rate."""

    def finish(axis: Axes) -> None:
        log_axis(axis)

    return _panels(cells, "cost_usd_per_good_mtoken", "USD per good Mtoken", finish)


def _from_zero(axis: Axes) -> None:
    axis.set_ylim(bottom=0)


def _panels(cells: pd.DataFrame, column: str, label: str, finish: Callable[[Axes], None]) -> Figure:
    models = sorted(set(cells["model"]), key=lambda name: (find_model(name).parameters_b, name))
    columns = 3
    rows = int(np.ceil((len(models) + 1) / columns))
    with styled():
        figure, grid = plt.subplots(
            rows, columns, figsize=(PAGE_WIDTH_IN, 2.1 * rows), sharex=True, sharey=True
        )
        axes = grid.ravel()
        for axis, model in zip(axes, models, strict=False):
            _panel(axis, cells[cells["model"] == model], column)
            finish(axis)
            rate_axis(axis)
            axis.set_title(short_name(model))
            axis.tick_params(labelbottom=True)
        for axis in axes[len(models) :]:
            axis.axis("off")
        for axis in grid[:, 0]:
            axis.set_ylabel(label)
        handles = {
            text: handle
            for axis in axes
            for handle, text in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        ordered = [name for name in GPU_COLORS if name in handles]
        axes[-1].legend([handles[name] for name in ordered], ordered, loc="center")
        caption(figure, evidence="recorded", n=f"{len(cells)} cells, replicates averaged")
    return figure


def _panel(axis: Axes, cells: pd.DataFrame, column: str) -> None:
    for (gpu, count), group in cells.groupby(["gpu", "gpu_count"]):
        label = configuration_label(gpu, count)
        ordered = group.sort_values("rate_requests_per_s")
        axis.plot(
            ordered["rate_requests_per_s"], ordered[column], label=label,
            color=GPU_COLORS[label], marker=GPU_MARKERS[label],
        )  # fmt: skip
