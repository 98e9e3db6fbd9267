"""Throughput share: what a 4090 configuration delivers of one H100's tokens per second.

share = X_4090 / X_H100 at the same model and offered rate q. Both runs serve the same requests, so
the share is the inverse ratio of their durations, and a duration is the arrival window W plus a
drain D (`drain.py`): share = (W + D_H100) / (W + D_4090). Hence it is near 1 by construction at low
rates, where W is long, and tells of the hardware only where the drains weigh.
"""

import itertools
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from hetinfer.drain import check_count, interpolate_drain_s, with_drains
from hetinfer.errors import InputError
from hetinfer.hardware import load_models, short_name
from hetinfer.intervals import (
    CONFIDENCE,
    mean_interval,
    replicate_freedom,
    replicate_noise,
    t_interval,
)
from hetinfer.metrics import share_table
from hetinfer.regression import Form, Regression, fit_regression, lack_of_fit, predict_mean
from hetinfer.runs import CONFIGURATION, average_replicates
from hetinfer.validation import Predictor, leave_one_out
from hetinfer.workload import study_arrivals_s

Array = npt.NDArray[np.float64]

BASELINE = ("h100-pcie", 1)
# two runs of equal throughput differ by 0.4 %: a share up to this far above 1 is 1 with noise
SHARE_EXCESS_FRAC = 0.01

FRACTIONAL_LOGIT = Form(
    "fractional logit",
    "capped_share",
    "logit",
    ("log2_rate", "log2_count", "log2_rate*log2_count", "log2_rate*log2_rate"),
)
RELATIVE_LOGIT = Form(
    "relative-rate logit",
    "capped_share",
    "logit",
    (
        "log2_relative_rate",
        "log2_count",
        "log2_relative_rate*log2_count",
        "log2_relative_rate*log2_relative_rate",
    ),
)
MECHANISTIC = Form(
    "mechanistic",
    "drain_s",
    "log",
    ("log2_rate", "log2_count", "log2_rate*log2_count"),
    offset="log_baseline_drain",
)


def share_pairs(runs: pd.DataFrame) -> pd.DataFrame:
    """Every run of another GPU beside one H100's of the same model and rate, replicates averaged.

    Adds to `metrics.share_table`: capped_share (at most 1, which is as far as a logit reaches: an
    excess up to `SHARE_EXCESS_FRAC` is noise), last_arrival_s, drain_s, baseline_drain_s, and the
    covariates of `with_covariates`. Raises InputError for a run without partner, and for a share
    that is not above 0 or lies further above 1.
    """
    cells = with_drains(average_replicates(runs))
    pairs = share_table(cells, BASELINE)
    _check_partners(cells, pairs)
    keys = ["model", "rate_requests_per_s"]
    is_baseline = (cells["gpu"] == BASELINE[0]) & (cells["gpu_count"] == BASELINE[1])
    base = cells.loc[is_baseline, [*keys, "drain_s"]]
    own = cells[[*CONFIGURATION, "rate_requests_per_s", "last_arrival_s", "drain_s"]]
    pairs = pairs.merge(own, on=[*CONFIGURATION, "rate_requests_per_s"], validate="one_to_one")
    pairs = pairs.merge(base.rename(columns={"drain_s": "baseline_drain_s"}), on=keys)
    _check_shares(pairs)
    pairs["capped_share"] = pairs["share"].clip(upper=1.0)
    return with_covariates(pairs, _best_rates(cells))


def with_covariates(table: pd.DataFrame, best_rates: Mapping[str, float]) -> pd.DataFrame:
    """The rows with log2_rate, log2_count, log2_relative_rate, log2_parameters, log_baseline_drain.

    log2_relative_rate is of the offered rate over `best_rates`, the model's highest request
    throughput on one H100; log2_parameters of its 10^9 parameters; the drain's log is natural.
    """
    models, rate = load_models(), table["rate_requests_per_s"]
    parameters_b = table["model"].map({name: m.parameters_b for name, m in models.items()})
    return table.assign(
        log2_rate=np.log2(rate),
        log2_count=np.log2(table["gpu_count"]),
        log2_relative_rate=np.log2(rate / table["model"].map(best_rates)),
        log2_parameters=np.log2(parameters_b),
        log_baseline_drain=np.log(table["baseline_drain_s"]),
    )


def share_cell(
    runs: pd.DataFrame, model: str, *, gpu_count: int, rate_requests_per_s: float
) -> pd.DataFrame:
    """One row to predict a share for: a model that ran on one H100, at a rate within its runs.

    The H100's drain is measured, or interpolated between measured rates. InputError for a model
    without H100 runs, a rate outside them, or more cards than any model ran on.
    """
    cells = with_drains(average_replicates(runs))
    check_count(cells[cells["gpu"] != BASELINE[0]], gpu_count)
    is_baseline = (cells["gpu"] == BASELINE[0]) & (cells["gpu_count"] == BASELINE[1])
    base = cells[is_baseline & (cells["model"] == model)]
    if base.empty:
        known = cells.loc[is_baseline, "model"].map(short_name).unique()
        raise InputError(
            "no H100 runs",
            got=short_name(model),
            expected=f"a model that ran on one H100: {', '.join(known)}",
            where="the recorded runs",
            do="name one of these",
        )
    drain_s = interpolate_drain_s(base, rate_requests_per_s)
    row = pd.DataFrame(
        {
            "model": [model],
            "gpu": ["rtx-4090"],
            "gpu_count": [gpu_count],
            "rate_requests_per_s": [rate_requests_per_s],
            "last_arrival_s": [
                study_arrivals_s(int(base["prompts"].iloc[0]), rate_requests_per_s)[-1]
            ],
            "baseline_drain_s": [drain_s],
        }
    )
    return with_covariates(row, _best_rates(cells))


def rate_grid(gpu_counts: Iterable[int], rates_requests_per_s: Iterable[float]) -> pd.DataFrame:
    """Cells of 4090s of no model in particular, every count at every rate, for means over models.

    Columns: gpu, gpu_count, rate_requests_per_s, log2_rate, log2_count.
    """
    cells = itertools.product(gpu_counts, rates_requests_per_s)
    grid = pd.DataFrame(cells, columns=["gpu_count", "rate_requests_per_s"])
    return grid.assign(
        gpu="rtx-4090",
        log2_rate=np.log2(grid["rate_requests_per_s"]),
        log2_count=np.log2(grid["gpu_count"]),
    )


def fit_fractional_logit(pairs: pd.DataFrame) -> Regression:
    """logit(share) on log2 rate, log2 GPU count, their product and the squared log2 rate.

    Source: Papke and Wooldridge (1996), Journal of Applied Econometrics 11.
    """
    return fit_regression(FRACTIONAL_LOGIT, pairs)


def fit_relative_logit(pairs: pd.DataFrame) -> Regression:
    """The same with the offered rate over the model's best request throughput on one H100."""
    return fit_regression(RELATIVE_LOGIT, pairs)


def fit_mechanistic(pairs: pd.DataFrame) -> Regression:
    """ln(D_4090 / D_H100) on log2 rate, log2 GPU count and their product, in the drain's own scale.

    Gaussian errors of the drain in seconds, log link, ln D_H100 as offset.
    """
    return fit_regression(MECHANISTIC, pairs)


def predict_share(
    fit: Regression, cells: pd.DataFrame, confidence: float = CONFIDENCE
) -> pd.DataFrame:
    """Predicted mean share with interval: columns estimate, low, high, freedom; the cells' index.

    For a drain fit, share = (W + D_H100) / (W + D), so that a longer drain is a lower share.
    """
    mean = predict_mean(fit, cells, confidence)
    if fit.form.response != "drain_s":
        return mean
    last_arrival_s, base_s = cells["last_arrival_s"], cells["baseline_drain_s"]
    ends = {"estimate": "estimate", "low": "high", "high": "low"}
    shares = {
        name: (last_arrival_s + base_s) / (last_arrival_s + mean[end]) for name, end in ends.items()
    }
    return pd.DataFrame(shares).assign(freedom=mean["freedom"])


def share_predictor(form: Form) -> Predictor:
    """The form as a function (runs to fit, runs to predict) -> shares, for validation."""

    def predictor(fitted: pd.DataFrame, cells: pd.DataFrame) -> Array:
        return np.asarray(predict_share(fit_regression(form, fitted), cells)["estimate"])

    return predictor


def describe_shares(pairs: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Mean share over models in each group of `by`, each model's configurations averaged first.

    Columns: `by`, share, low, high (t over models, 95 %; NaN for one model), n_models.
    """
    rows = []
    for key, group in pairs.groupby(by):
        values = group.groupby("model")["share"].mean().to_numpy()
        rows.append(
            (*(key if isinstance(key, tuple) else (key,)), *mean_interval(values), values.size)
        )
    return pd.DataFrame(rows, columns=[*by, "share", "low", "high", "n_models"])


def descriptive_predictor(fitted: pd.DataFrame, cells: pd.DataFrame) -> Array:
    """Mean share over models at the rate; between rates linear in log2 rate, flat beyond."""
    means = describe_shares(fitted, ["rate_requests_per_s"])
    known = np.log2(means["rate_requests_per_s"].to_numpy(dtype=float))
    wanted = np.log2(cells["rate_requests_per_s"].to_numpy(dtype=float))
    return np.asarray(np.interp(wanted, known, means["share"].to_numpy(dtype=float)))


def new_model_band(pairs: pd.DataFrame, form: Form) -> pd.DataFrame:
    """Half width of a band for a model that has not run, by rate: the largest left-out error.

    At each rate, the largest |share - prediction without its model| over all models: it holds a new
    model's share with confidence `intervals.band_limit(models)`, 5/6 for five, and no more.
    Columns: rate_requests_per_s, half_width.
    """
    predicted = leave_one_out(pairs, "model", share_predictor(form))
    sizes = (pairs["share"] - predicted).abs()
    widest = sizes.groupby(pairs["rate_requests_per_s"]).max()
    return widest.rename("half_width").reset_index()


def band_half_width(band: pd.DataFrame, rate_requests_per_s: Array) -> Array:
    """The band's half width at any rate: linear in log2 rate between the band's own rates."""
    known = np.log2(band["rate_requests_per_s"].to_numpy(dtype=float))
    widths = band["half_width"].to_numpy(dtype=float)
    return np.asarray(np.interp(np.log2(rate_requests_per_s), known, widths))


def misfit_table(
    fits: Iterable[Regression], pairs: pd.DataFrame, runs: pd.DataFrame
) -> pd.DataFrame:
    """Each form's relative residual of share beside the noise of repeating both runs of a pair.

    Columns: form, residual_frac, noise_frac, times_noise, variance_ratio (F) and p_value, as
    `regression.lack_of_fit`.
    """
    noise_frac = float(np.sqrt(2)) * replicate_noise(runs, "throughput_tokens_per_s")
    rows = []
    for fit in fits:
        residual_frac, ratio, p_value = lack_of_fit(
            pairs["share"].to_numpy(dtype=float),
            predict_share(fit, pairs)["estimate"].to_numpy(dtype=float),
            n_parameters=len(fit.coefficients),
            noise_frac=noise_frac,
            noise_freedom=replicate_freedom(runs),
        )
        times = residual_frac / noise_frac
        rows.append((fit.form.name, residual_frac, noise_frac, times, ratio, p_value))
    columns = ["form", "residual_frac", "noise_frac", "times_noise", "variance_ratio", "p_value"]
    return pd.DataFrame(rows, columns=columns)


def count_effect(fit: Regression, rates_requests_per_s: Iterable[float]) -> pd.DataFrame:
    """What twice the cards change at each rate: exp(b_count + b_rate_count log2 q), with interval.

    A factor of the share's odds for a logit, of the drain for the mechanistic form. Its t has as
    many degrees of freedom as models that ran on more than one GPU count, less one. Columns: form,
    rate_requests_per_s, factor, low, high, p_value, n_models.
    """
    n_models = int((fit.rows.groupby("model")["gpu_count"].nunique() > 1).sum())
    rates = np.array(list(rates_requests_per_s), dtype=float)
    terms = ["intercept", *fit.form.terms]
    contrast = np.zeros((rates.size, len(terms)))
    contrast[:, terms.index("log2_count")] = 1
    contrast[:, terms.index("log2_rate*log2_count")] = np.log2(rates)
    effect = contrast @ fit.coefficients
    std_error = np.sqrt(np.einsum("kp,pq,kq->k", contrast, fit.covariance, contrast))
    low, high = t_interval(effect, std_error, n_models - 1)
    return pd.DataFrame(
        {
            "form": fit.form.name,
            "rate_requests_per_s": rates,
            "factor": np.exp(effect),
            "low": np.exp(low),
            "high": np.exp(high),
            "p_value": 2 * stats.t.sf(np.abs(effect) / std_error, n_models - 1),
            "n_models": n_models,
        }
    )


def share_curves(
    pairs: pd.DataFrame,
    fit: Regression,
    gpu_counts: Iterable[int],
    rates_requests_per_s: Iterable[float],
) -> pd.DataFrame:
    """Mean share over models at a grid of cells, its interval, and the band of a new model.

    Columns: those of `rate_grid`, estimate, low, high, freedom, band_low, band_high. Interval and
    band are NaN at GPU counts that a single model ran.
    """
    grid = rate_grid(gpu_counts, rates_requests_per_s)
    mean = predict_share(fit, grid)
    half = band_half_width(
        new_model_band(pairs, fit.form), grid["rate_requests_per_s"].to_numpy(dtype=float)
    )
    half = np.where(mean["freedom"] >= 1, half, np.nan)
    return grid.join(mean).assign(
        band_low=mean["estimate"] - half, band_high=mean["estimate"] + half
    )


def _best_rates(cells: pd.DataFrame) -> dict[str, float]:
    is_baseline = (cells["gpu"] == BASELINE[0]) & (cells["gpu_count"] == BASELINE[1])
    best = cells[is_baseline].groupby("model")["throughput_requests_per_s"].max()
    return {str(model): float(rate) for model, rate in best.items()}


def _check_partners(cells: pd.DataFrame, pairs: pd.DataFrame) -> None:
    keys = [*CONFIGURATION, "rate_requests_per_s"]
    others = cells.loc[cells["gpu"] != BASELINE[0], keys]
    lonely = others.merge(pairs[keys], on=keys, how="left", indicator=True).query(
        "_merge == 'left_only'"
    )
    if not lonely.empty:
        row = lonely.iloc[0]
        raise InputError(
            "partner run missing",
            got=f"{row['gpu_count']}x {row['gpu']} at {row['rate_requests_per_s']:g}/s alone",
            expected=f"a run of {short_name(row['model'])} on one H100 at that rate",
            where="share_pairs",
            do="add that run, or leave this one out",
        )


def _check_shares(pairs: pd.DataFrame) -> None:
    share = pairs["share"]
    wrong = pairs[~((share > 0) & (share <= 1 + SHARE_EXCESS_FRAC))]
    if not wrong.empty:
        row = wrong.iloc[0]
        raise InputError(
            "share out of range",
            got=f"{row['share']:g}",
            expected=f"above 0 and at most {1 + SHARE_EXCESS_FRAC:g}",
            where=f"{short_name(row['model'])}, {row['gpu_count']}x {row['gpu']}, "
            f"{row['rate_requests_per_s']:g}/s",
            do="check both runs: a share is of one H100 at the same offered rate",
        )
