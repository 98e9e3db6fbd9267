"""Figures of throughput share: models and data apart, bands, left-out errors, coverage."""

from collections.abc import Sequence

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
    rate_axis,
    styled,
)
from hetinfer.hardware import configuration_label, find_model, short_name

MODEL_MARKERS = ("o", "s", "^", "D", "P", "X", "v", "*")
INTERVAL_COLOR = "#bdbdbd"
FORM_MARKERS = ("o", "s", "^", "D")


def draw_share_against_rate(pairs: pd.DataFrame, curves: pd.DataFrame) -> Figure:
    """Share against offered rate, one panel a GPU count: each model's runs, the mean, its band.

    `curves` has gpu_count, rate_requests_per_s, estimate, low, high (of the mean) and band_low,
    band_high (for a model that has not run); NaN where there is no interval.
    """
    counts = sorted(pairs["gpu_count"].unique())
    markers = _model_markers(pairs["model"])
    with styled():
        figure, axes = plt.subplots(
            1, len(counts), figsize=(PAGE_WIDTH_IN, 2.7), sharex=True, sharey=True
        )
        for axis, count in zip(axes, counts, strict=True):
            _draw_curve(axis, curves[curves["gpu_count"] == count])
            for model, group in pairs[pairs["gpu_count"] == count].groupby("model", sort=False):
                axis.plot(
                    group["rate_requests_per_s"], group["share"], linestyle="none",
                    marker=markers[model], color="#D55E00", markeredgecolor="black",
                    markeredgewidth=0.5, label=_brief(model),
                )  # fmt: skip
            rate_axis(axis)
            axis.set(title=configuration_label("rtx-4090", count), ylim=(0.3, 1.1))
        axes[0].set_ylabel("share of one H100's tokens/s")
        _legend_below(figure, axes)
        caption(
            figure,
            evidence="recorded",
            n=f"{len(pairs)} pairs of {pairs['model'].nunique()} models",
            note="line: fractional logit; grey: 95 % for the mean; dashed: 83 % for a new model",
        )
    return figure


def draw_share_by_model(pairs: pd.DataFrame, left_out: pd.DataFrame) -> Figure:
    """Share against offered rate, one panel a model: runs, and predictions made without that model.

    `left_out` has model, gpu_count, rate_requests_per_s and predicted.
    """
    models = list(_model_markers(pairs["model"]))
    with styled():
        figure, axes = plt.subplots(
            1, len(models), figsize=(PAGE_WIDTH_IN, 2.4), sharex=True, sharey=True
        )
        for axis, model in zip(axes, models, strict=True):
            for count, group in pairs[pairs["model"] == model].groupby("gpu_count"):
                label = configuration_label("rtx-4090", count)
                ordered = group.sort_values("rate_requests_per_s")
                style = {"color": GPU_COLORS[label], "marker": GPU_MARKERS[label]}
                axis.plot(
                    ordered["rate_requests_per_s"], ordered["share"], linestyle="none",
                    label=label, **style,
                )  # fmt: skip
                same = (left_out["model"] == model) & (left_out["gpu_count"] == count)
                predicted = left_out[same].sort_values("rate_requests_per_s")
                axis.plot(
                    predicted["rate_requests_per_s"], predicted["predicted"],
                    color=style["color"], linewidth=0.9,
                )  # fmt: skip
            rate_axis(axis)
            axis.set_xlabel("rate (1/s)")
            axis.set_title(_brief(model), fontsize=7)
        axes[0].set_ylabel("share of one H100's tokens/s")
        _legend_below(figure, axes)
        n = f"{len(pairs)} pairs of {len(models)} models"
        caption(
            figure, evidence="recorded", n=n, note="lines: mechanistic, fitted without the model"
        )
    return figure


def draw_share_residuals(errors: pd.DataFrame, forms: Sequence[str], noise_frac: float) -> Figure:
    """What predictions of a left-out model miss, in share points, against the rate, a panel a form.

    `errors` is `validation.validation_errors`; the stripe is twice the noise of a recorded share,
    `noise_frac` relative.
    """
    table = errors[errors["left_out"] == "model"]
    markers = _model_markers(table["model"])
    with styled():
        figure, axes = plt.subplots(
            1, len(forms), figsize=(PAGE_WIDTH_IN, 2.7), sharex=True, sharey=True
        )
        for axis, form in zip(axes, forms, strict=True):
            axis.axhspan(-200 * noise_frac, 200 * noise_frac, color=INTERVAL_COLOR)
            axis.axhline(0, color="black", linewidth=0.6)
            own = table[table["form"] == form]
            for shift, (model, marker) in enumerate(markers.items()):
                part = own[own["model"] == model]
                spread = 1.06 ** (shift - (len(markers) - 1) / 2)
                axis.plot(
                    part["rate_requests_per_s"] * spread, 100 * part["error"], linestyle="none",
                    marker=marker, color="#D55E00", markeredgecolor="black",
                    markeredgewidth=0.5, label=_brief(model),
                )  # fmt: skip
            rate_axis(axis)
            axis.set_title(f"{form}: {100 * own['error'].abs().mean():.1f} points off")
        axes[0].set_ylabel("predicted - recorded (share points)")
        _legend_below(figure, axes)
        n = f"{len(own)} pairs a panel"
        note = "each model predicted from the others; stripe: twice a share's replicate noise"
        caption(figure, evidence="recorded", n=n, note=note)
    return figure


def draw_coverage(coverage: pd.DataFrame, nominal: float = 0.95) -> Figure:
    """How often each interval holds the truth, on average and for its worst number, by form.

    `coverage` is `coverage.coverage_table` with a column form; bars of two standard errors.
    """
    methods = list(coverage["method"].drop_duplicates())
    forms = list(coverage["form"].drop_duplicates())
    with styled():
        figure, axis = plt.subplots(figsize=(COLUMN_WIDTH_IN, 3.0))
        axis.axvline(nominal, color="black", linewidth=0.8, linestyle=":")
        for shift, form in enumerate(forms):
            own = coverage[coverage["form"] == form].groupby("method", sort=False)
            mean, lowest = own["coverage"].mean(), own["lowest"].min()
            error = 2 * np.sqrt(mean * (1 - mean) / own["n_datasets"].first())
            place = np.arange(len(methods))[::-1] + 0.16 - 0.32 * shift
            color = ("#0072B2", "#E69F00")[shift % 2]
            axis.errorbar(
                mean.loc[methods], place, xerr=error.loc[methods], linestyle="none",
                marker=FORM_MARKERS[shift], color=color, label=form, linewidth=1,
            )  # fmt: skip
            axis.plot(
                lowest.loc[methods], place, linestyle="none", color=color,
                marker=FORM_MARKERS[shift], markerfacecolor="none", markersize=3,
            )  # fmt: skip
        axis.set_yticks(np.arange(len(methods))[::-1], methods)
        axis.set(xlim=(0.3, 1.0), xlabel="fraction of data sets whose interval holds the truth")
        axis.legend(loc="lower left", fontsize=6)
        sizes = sorted(coverage["n_datasets"].unique())
        n = " or ".join(f"{size:,}" for size in sizes) + " data sets"
        caption(
            figure, evidence="simulated from the fitted forms", n=n, note="hollow: its worst number"
        )
    return figure


def _draw_curve(axis: Axes, curve: pd.DataFrame) -> None:
    ordered = curve.sort_values("rate_requests_per_s")
    rate = ordered["rate_requests_per_s"]
    axis.fill_between(rate, ordered["low"], ordered["high"], color=INTERVAL_COLOR, linewidth=0)
    for edge in ("band_low", "band_high"):
        axis.plot(rate, ordered[edge], color="black", linewidth=0.8, linestyle="--")
    axis.plot(rate, ordered["estimate"], color="black")


def _brief(model: str) -> str:
    return short_name(model).replace("DeepSeek-R1-Distill-", "")


def _model_markers(models: pd.Series) -> dict[str, str]:
    ordered = sorted(set(models), key=lambda name: (find_model(name).parameters_b, name))
    return dict(zip(ordered, MODEL_MARKERS, strict=False))


def _legend_below(figure: Figure, axes: Sequence[Axes]) -> None:
    handles = {
        text: handle
        for axis in axes
        for handle, text in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(), handles, loc="outside upper center", ncols=len(handles), fontsize=6.5
    )
