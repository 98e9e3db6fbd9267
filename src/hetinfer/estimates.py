"""What is known of one share or cost: what was recorded, and what each model says of it."""

import math
from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from hetinfer.cost import cost_cell, cost_cells, fit_drain, interpolated_cost, predict_cost
from hetinfer.drain import interpolation_errors
from hetinfer.intervals import (
    CONFIDENCE,
    band_limit,
    replicate_freedom,
    replicate_noise,
    t_interval,
)
from hetinfer.runs import CONFIGURATION
from hetinfer.share import (
    band_half_width,
    fit_fractional_logit,
    fit_mechanistic,
    new_model_band,
    predict_share,
    share_cell,
    share_pairs,
)
from hetinfer.values import Evidence, Value, decimals_for, estimate_text, interval_text, quote

# kind, estimate, low, high, confidence
Estimate = tuple[str, float, float, float, float]
COLUMNS = ["kind", "estimate", "low", "high", "confidence"]
KEYS = [*CONFIGURATION, "rate_requests_per_s"]
HUNDREDTHS = {"%": 100, "points": 100}


def share_estimates(
    runs: pd.DataFrame, model: str, *, gpu_count: int, rate_requests_per_s: float
) -> pd.DataFrame:
    """A 4090 configuration's share of one H100: as recorded, then each form's mean and band.

    Columns: kind, estimate, low, high, confidence, evidence. A recorded share's interval is the
    noise of its two runs; a form's is of the mean over models; a band is for a model that has not
    run. GPU counts that a single model ran have no interval (NaN) and no band. Raises as
    `share.share_cell`.
    """
    pairs = share_pairs(runs)
    cell = share_cell(runs, model, gpu_count=gpu_count, rate_requests_per_s=rate_requests_per_s)
    noise_frac = np.sqrt(2) * replicate_noise(runs, "throughput_tokens_per_s")
    recorded = pairs.merge(cell[KEYS], on=KEYS)["share"]
    rows = [_with_noise("recorded", float(s), runs, float(noise_frac)) for s in recorded]
    for fit in (fit_mechanistic(pairs), fit_fractional_logit(pairs)):
        mean = predict_share(fit, cell).iloc[0]
        estimate = float(mean["estimate"])
        rows.append((fit.form.name, estimate, float(mean["low"]), float(mean["high"]), CONFIDENCE))
        if mean["freedom"] < 1:
            continue
        band = new_model_band(pairs, fit.form)
        half = float(band_half_width(band, np.array([rate_requests_per_s]))[0])
        limit = band_limit(pairs["model"].nunique())
        name = f"{fit.form.name}, new model"
        rows.append((name, estimate, estimate - half, estimate + half, limit))
    return pd.DataFrame(rows, columns=COLUMNS).assign(evidence="recorded")


def cost_estimates(
    runs: pd.DataFrame,
    model: str,
    prices: Mapping[str, float],
    *,
    gpu: str,
    gpu_count: int,
    rate_requests_per_s: float,
) -> pd.DataFrame:
    """USD per million tokens: recorded or interpolated from own runs, then the drain model's mean.

    Columns: kind, estimate, low, high, confidence, evidence. A recorded cost's interval is the
    noise of one run, an interpolated one's what left-out rates were missed by, the model's is of
    the mean over models. Raises as `cost.cost_cell` and `cost.interpolated_cost`.
    """
    cells = cost_cells(runs)
    cell = cost_cell(
        cells, model, gpu=gpu, gpu_count=gpu_count, rate_requests_per_s=rate_requests_per_s
    )
    rows = []
    own = interpolated_cost(cells, cell, prices)
    if own is not None and len(cells.merge(cell[KEYS], on=KEYS)):
        rows.append(_with_noise("recorded", own, runs, replicate_noise(runs, "duration_s")))
    elif own is not None:
        missed = 1 + interpolation_errors(cells)["error_frac"]
        tail = (1 - CONFIDENCE) / 2
        low, high = (own / float(missed.quantile(q)) for q in (1 - tail, tail))
        rows.append(("interpolated", own, low, high, CONFIDENCE))
    mean = predict_cost(fit_drain(cells), cell, prices).iloc[0]
    ends = [float(mean[name]) for name in ("estimate", "low", "high")]
    rows.append(("drain model", ends[0], ends[1], ends[2], CONFIDENCE))
    return pd.DataFrame(rows, columns=COLUMNS).assign(evidence="recorded")


def quote_rows(
    table: pd.DataFrame,
    column: str,
    *,
    name: str,
    unit: str,
    chapter: str,
    evidence: Evidence = "recorded",
) -> list[Value]:
    """A quoted number a row, with its interval where the row has one (columns low and high).

    `name` is filled from the row, such as `share_{gpu_count:g}x4090_{rate_requests_per_s:g}qps`. In
    % and points a fraction becomes hundredths. Without interval, two significant digits are kept.
    """
    quoted = []
    for row in table.to_dict("records"):
        numbers = [row[column], row.get("low", math.nan), row.get("high", math.nan)]
        value, low, high = (HUNDREDTHS.get(unit, 1) * float(number) for number in numbers)
        known = not math.isnan(low + high)
        quoted.append(
            quote(
                name.format_map(row),
                value,
                unit=unit,
                evidence=evidence,
                chapter=chapter,
                low=low if known else None,
                high=high if known else None,
                decimals=None if known else decimals_for(value),
            )
        )
    return quoted


def interval_texts(quoted: Iterable[Value]) -> dict[str, str]:
    """Intervals of quoted numbers as text, `NAME_interval` -> `59 to 84`, for sentences."""
    return {
        f"{value.name}_interval": interval_text(value.low, value.high)
        for value in quoted
        if value.low is not None and value.high is not None
    }


def estimates_text(table: pd.DataFrame, *, decimals: int, unit: str) -> str:
    """Estimates as lines of text: kind, number with interval and confidence, unit, evidence."""
    lines = []
    for row in table.to_dict("records"):
        numbers = [row[name] for name in ("estimate", "low", "high", "confidence")]
        text = estimate_text(*numbers, decimals=decimals)
        lines.append(f"{row['kind']:<28} {text} {unit}; evidence: {row['evidence']}")
    return "\n".join(lines)


def _with_noise(kind: str, value: float, runs: pd.DataFrame, noise_frac: float) -> Estimate:
    low, high = t_interval(np.array(np.log(value)), np.array(noise_frac), replicate_freedom(runs))
    return kind, value, float(np.exp(low)), float(np.exp(high)), CONFIDENCE
