"""Figures of the recorded study: its Figure 1, arrivals, warm caches, replicate noise."""

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hetinfer.figures.style import (
    GPU_COLORS,
    GPU_MARKERS,
    PAGE_WIDTH_IN,
    caption,
    rate_axis,
    styled,
)
from hetinfer.hardware import configuration_label, short_name
from hetinfer.values import rounded

STATE_COLORS = {"cold": "#0072B2", "warm": "#E69F00"}
STATE_MARKERS = {"cold": "o", "warm": "X"}


def draw_achieved_rate(printed: pd.DataFrame, table_2: pd.DataFrame) -> Figure:
    """The paper's Figure 1 twice: as printed, and as its own runs have it.

    `printed` is `published.compare_other`; `table_2` the recorded run behind each row. Achieved
    request rate against offered rate; labels give USD per million tokens.
    """
    with styled():
        figure, axes = plt.subplots(1, 2, figsize=(PAGE_WIDTH_IN, 3.0), sharex=True, sharey=True)
        _printed_panel(axes[0], printed, table_2)
        _recorded_panel(axes[1], table_2)
        for axis, title in zip(axes, ("as printed", "as recorded"), strict=True):
            rates = [1.0, 16.0]
            axis.plot(rates, rates, color="#999999", linestyle=":", linewidth=1, label="ideal")
            rate_axis(axis)
            axis.set(title=title, ylim=(0, 15), ylabel="achieved rate (requests/s)")
            axis.legend(loc="upper left")
        n = f"{len(table_2)} runs of DeepSeek-R1-Distill-Qwen-14B"
        caption(figure, evidence="printed (left), recorded (right)", n=n, note="labels: USD/Mtoken")
    return figure


def draw_beyond_window(runs: pd.DataFrame) -> Figure:
    """How much of each run lies beyond its arrival window: 1 - window / duration, against rate.

    `runs` has the columns of `recorded.with_window`.
    """
    table = runs.assign(
        beyond_window_frac=runs["beyond_window_s"] / runs["duration_s"],
        configuration=_labels(runs),
    )
    with styled():
        figure, axis = plt.subplots(figsize=(PAGE_WIDTH_IN, 2.8))
        sns.lineplot(
            table, x="rate_requests_per_s", y="beyond_window_frac", hue="configuration",
            style="configuration", units=table["model"] + table["replicate"].astype(str),
            estimator=None, markers=dict(GPU_MARKERS), dashes=False, palette=dict(GPU_COLORS),
            hue_order=list(GPU_COLORS), style_order=list(GPU_COLORS), linewidth=0.7, ax=axis,
        )  # fmt: skip
        rate_axis(axis)
        axis.set(ylabel="share of duration after\nthe arrival window", ylim=(0, 1))
        axis.legend(title="", ncols=2, loc="upper left")
        caption(figure, evidence="recorded", n=f"{len(runs)} runs, one line a sequence")
    return figure


def draw_warm_cache(table: pd.DataFrame) -> Figure:
    """P99 over median inter-token latency against rate, by what the server's cache could hold.

    `table` is `recorded.warm_cache_table`; multi-GPU 4090 runs, whose hosts stall, stand apart.
    """
    with styled():
        figure, axes = plt.subplots(1, 2, figsize=(PAGE_WIDTH_IN, 2.8), sharey=True)
        groups = ((False, "single-GPU 4090 and H100"), (True, "multi-GPU 4090"))
        for axis, (many, title) in zip(axes, groups, strict=True):
            part = table[table["many_4090"] == many]
            sns.scatterplot(
                part, x="rate_requests_per_s", y="itl_ratio", hue="expected", style="expected",
                palette=STATE_COLORS, markers=STATE_MARKERS, s=24, alpha=0.8, ax=axis,
                hue_order=["cold", "warm"], style_order=["cold", "warm"],
            )  # fmt: skip
            axis.set_yscale("log")
            axis.set_yticks([1, 2, 5, 10], labels=["1", "2", "5", "10"])
            axis.minorticks_off()
            rate_axis(axis)
            axis.set(title=f"{title} (n = {len(part)})", ylabel="P99 / median ITL")
            axis.legend(title="cache expected", loc="upper left")
        note = "warm: prompts seen before and cache large enough"
        caption(figure, evidence="recorded", n=f"{len(table)} runs", note=note)
    return figure


def draw_replicate_noise(pairs: pd.DataFrame) -> Figure:
    """Relative difference of the second replicate from the first, by metric.

    `pairs` is `recorded.replicate_pairs`.
    """
    table = pairs.assign(
        percent=100 * pairs["difference_frac"],
        what=pairs["model"].map(short_name),
        metric=pairs["metric"].str.replace("_requests_per_s", " (requests)"),
    )
    table["metric"] = table["metric"].str.replace("_tokens_per_s", " (tokens)")
    table["metric"] = table["metric"].str.removesuffix("_s").str.replace("_", " ")
    with styled():
        figure, axis = plt.subplots(figsize=(PAGE_WIDTH_IN, 2.6))
        sns.scatterplot(
            table, x="percent", y="metric", hue="what", style="what", ax=axis, s=22,
            palette=["#0072B2", "#D55E00"],
        )  # fmt: skip
        axis.axvline(0, color="#999999", linewidth=0.8)
        axis.set(xlabel="second replicate against the first (%)", ylabel="")
        axis.legend(title="", loc="lower right")
        n = f"{pairs.drop_duplicates(['model', 'rate_requests_per_s']).shape[0]} pairs of runs"
        caption(figure, evidence="recorded", n=n)
    return figure


def _labels(runs: pd.DataFrame) -> list[str]:
    return [
        configuration_label(gpu, count)
        for gpu, count in zip(runs["gpu"], runs["gpu_count"], strict=True)
    ]


def _line(axis: Axes, rates: list[float], achieved: list[float], label: str) -> None:
    axis.plot(
        rates, achieved, label=label, color=GPU_COLORS[label], marker=GPU_MARKERS[label],
        linewidth=1.2,
    )  # fmt: skip


def _note(axis: Axes, rate: float, achieved: float, text: str, label: str = "") -> None:
    below = label.startswith("2x")
    axis.annotate(
        text, (rate, achieved), textcoords="offset points", xytext=(0, -9 if below else 5),
        fontsize=6, ha="center",
    )  # fmt: skip


def _printed_panel(axis: Axes, printed: pd.DataFrame, table_2: pd.DataFrame) -> None:
    figure_1 = printed[printed["source"] == "paper-figure-1"].set_index(["item", "name"])["printed"]
    for label, item in (("1x H100", "1xh100-pcie"), ("2x 4090", "2xrtx-4090")):
        runs = _configuration(table_2, label)
        achieved = {row.rate_requests_per_s: row.throughput_requests_per_s for row in runs}
        drawn = {name: text for name, text in figure_1[item].items() if name.startswith("point")}
        for name, text in drawn.items():
            achieved[float(name.split(" ")[2])] = float(text)
        _line(axis, list(achieved), list(achieved.values()), label)
        for rate, value in achieved.items():
            _note(axis, rate, value, str(figure_1[item, f"label at {rate:g} QPS"]), label)
    scaled = figure_1["4x(2xrtx-4090)"]
    point = float(scaled.filter(like="point").iloc[0])
    axis.plot([16], [point], marker="*", markersize=9, linestyle="", color="#D55E00",
              label="4 nodes of 2x 4090, expected")  # fmt: skip
    _note(axis, 16, point, str(scaled.filter(like="label").iloc[0]))


def _recorded_panel(axis: Axes, table_2: pd.DataFrame) -> None:
    for label in ("1x H100", "2x 4090", "4x 4090"):
        runs = _configuration(table_2, label)
        rates = [row.rate_requests_per_s for row in runs]
        _line(axis, rates, [row.throughput_requests_per_s for row in runs], label)
        for row in runs:
            if label != "4x 4090" or row.rate_requests_per_s == 32:
                text = rounded(row.cost_usd_per_mtoken, 3)
                _note(axis, row.rate_requests_per_s, row.throughput_requests_per_s, text, label)


def _configuration(table_2: pd.DataFrame, label: str) -> list[pd.Series]:
    chosen = table_2[[name == label for name in _labels(table_2)]]
    return [row for _, row in chosen.sort_values("rate_requests_per_s").iterrows()]
