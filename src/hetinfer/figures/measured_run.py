"""Figure of one measured run over its time: latencies of its requests, throughput, power."""

from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hetinfer.figures.style import PAGE_WIDTH_IN, caption, styled

SENT, INTENDED = "#0072B2", "#D55E00"
ABOVE: Any = {"loc": "lower right", "bbox_to_anchor": (1.0, 0.98), "ncols": 8, "borderpad": 0}


def draw_measured_run(
    timeline: pd.DataFrame, steps: pd.DataFrame, power: pd.DataFrame, *, power_reason: str
) -> Figure:
    """TTFT, TPOT, throughput and power against time since the run began, one panel each.

    `timeline` has one row a request (`intended_s`, `start_s`, `ttft_s`, `ttft_from_intended_s`,
    `tpot_s`), `steps` the throughput over time, `power` the samples of each device (`time_s`,
    `device`, `power_w`). Where there are no samples the panel says `power_reason`.
    """
    with styled():
        figure, axes = plt.subplots(4, 1, sharex=True, figsize=(PAGE_WIDTH_IN, 5.4))
        ttft, tpot, throughput, watts = axes
        intended = timeline["intended_s"]
        ttft.plot(
            intended, timeline["ttft_from_intended_s"], "x", color=INTENDED, label="from schedule"
        )
        ttft.plot(
            intended, timeline["ttft_s"], "o", color=SENT, markersize=2.5, label="from sending"
        )
        ttft.set_ylabel("TTFT (s)")
        ttft.legend(**ABOVE)
        tpot.plot(intended, timeline["tpot_s"] * 1000, "o", color=SENT, markersize=2.5)
        tpot.set_ylabel("TPOT (ms)")
        throughput.step(
            steps["time_s"], steps["throughput_tokens_per_s"].fillna(0.0), where="mid", color=SENT
        )
        throughput.set_ylabel("output\n(tokens/s)")
        _draw_power(watts, power, power_reason)
        for axis in axes:
            axis.margins(y=0.15)
            axis.set_ylim(bottom=0)
        watts.set_xlabel("time since the run began (s)")
        caption(figure, evidence="measured", n=f"{len(timeline)} requests of one run")
    return figure


def _draw_power(axis: Axes, power: pd.DataFrame, reason: str) -> None:
    axis.set_ylabel("power (W)")
    measured = power.dropna(subset=["power_w"])
    if measured.empty:
        axis.text(0.5, 0.5, f"not measured: {reason}", transform=axis.transAxes, ha="center")
        axis.set_yticks([])
        return
    for (device, samples), style in zip(measured.groupby("device"), _styles(), strict=False):
        axis.plot(samples["time_s"], samples["power_w"], label=device, linestyle=style)
    axis.legend(**ABOVE)


def _styles() -> list[str]:
    return ["-", "--", ":", "-."] * 4  # devices stay apart in grey, up to sixteen of them
