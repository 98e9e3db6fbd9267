"""Which interval keeps faith: how often each holds the truth that data sets were drawn from.

The truth is a fitted form; models differ from it by a random intercept and random slopes in log2
rate and log2 GPU count, runs by independent noise, all with the spreads of the recorded runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pandas as pd

from hetinfer.intervals import (
    CONFIDENCE,
    cluster_jackknife,
    pairs_bootstrap,
    percentile_interval,
    score_wild_p_value,
    simulate_coverage,
    t_interval,
    webb_weights,
)
from hetinfer.regression import Regression, design_matrix, informed_freedom, pose
from hetinfer.scoring import (
    Problem,
    cluster_estimates,
    covariances,
    mean_and_slope,
    null_contributions,
    solve_scores,
)

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

NORMAL_FREEDOM = 1e9  # t with this many degrees of freedom is the normal distribution
CLOSED = ("naive, normal", "robust, normal", "robust, t", "jackknife, t", "bias-reduced, t")
RECOMMENDED = "bias-reduced, t of informed models"
RESAMPLED = ("pairs bootstrap", "score wild bootstrap")
ENDS = ((0, "low"), (1, "high"))
SMALLEST_SLOPE = 0.02  # of the mean: below it the logit is too flat for a residual to say anything
SMALLEST_SHARE = 1e-3  # a drawn share below it is set to it: the logit ends at 0


@dataclass(frozen=True)
class Spread:
    """Standard deviations of the predictor: of models' intercept and slopes, and of runs."""

    intercept: float
    rate_slope: float
    count_slope: float
    run: float


@dataclass(frozen=True)
class Truth:
    """A known truth: design, coefficients (p,), spread, and the contrasts (k, p) to be covered.

    `effects` (n, 3) multiply a model's intercept and slopes; `freedom` (k,) is the recommended
    interval's; the first p contrasts are the coefficients.
    """

    problem: Problem
    coefficients: Array
    spread: Spread
    effects: Array
    contrasts: Array
    freedom: Array


def known_truth(fit: Regression, table: pd.DataFrame, cells: pd.DataFrame) -> Truth:
    """The fit taken for the truth, with the spreads of its own residuals.

    `table` is what was fitted, `cells` those whose mean predictions are to be covered beside the
    coefficients.
    """
    problem = pose(fit.form, table)
    log2_rate, log2_count = table["log2_rate"].to_numpy(), table["log2_count"].to_numpy()
    effects = np.column_stack(
        [np.ones(len(table)), log2_rate - log2_rate.mean(), log2_count - log2_count.mean()]
    )
    response = table[fit.form.response].to_numpy(dtype=float)
    spread = measure_spread(problem, response, effects, fit.coefficients)
    size = len(fit.coefficients)
    contrasts = np.vstack([np.eye(size), design_matrix(fit.form, cells)])
    freedom = np.concatenate([np.full(size, float(fit.freedom)), informed_freedom(fit, cells)])
    return Truth(problem, fit.coefficients, spread, effects, contrasts, freedom)


def measure_spread(
    problem: Problem, response: Array, effects: Array, coefficients: Array
) -> Spread:
    """Root mean squares, over models, of their intercept and slopes, and of what these leave.

    Working residuals (y - mean)/slope are regressed on `effects` model by model; a model run with
    one GPU count has no slope in it.
    """
    mean, slope = mean_and_slope(problem.link, problem.offset + problem.design @ coefficients)
    clear = slope > SMALLEST_SLOPE if problem.link == "logit" else slope > 0
    fitted = np.full((problem.groups.max() + 1, 3), np.nan)
    squares, freedom = 0.0, 0
    for group in range(len(fitted)):
        rows = (problem.groups == group) & clear
        varied = 3 if np.ptp(effects[rows, 2]) > 0 else 2
        working = (response[rows] - mean[rows]) / slope[rows]
        own, *_ = np.linalg.lstsq(effects[rows, :varied], working)
        fitted[group, :varied] = own
        squares += float(((working - effects[rows, :varied] @ own) ** 2).sum())
        freedom += int(rows.sum()) - varied
    intercept, rate_slope, count_slope = np.sqrt(np.nanmean(fitted**2, axis=0))
    return Spread(
        float(intercept), float(rate_slope), float(count_slope), float(np.sqrt(squares / freedom))
    )


def draw_responses(truth: Truth, rng: np.random.Generator, n: int) -> Array:
    """Responses (n, runs) whose mean is the truth's: normal effects z of models and runs.

    logit: m + m(1-m) z, kept within 0 and 1; log: m exp(z - var(z)/2).
    """
    problem, spread = truth.problem, truth.spread
    sizes = np.array([spread.intercept, spread.rate_slope, spread.count_slope])
    models = rng.normal(size=(n, problem.groups.max() + 1, 3)) * sizes
    effect = np.einsum("ngk,gk->ng", models[:, problem.groups], truth.effects)
    effect = effect + rng.normal(size=effect.shape) * spread.run
    mean, slope = mean_and_slope(problem.link, problem.offset + problem.design @ truth.coefficients)
    if problem.link == "logit":
        return np.asarray(np.clip(mean + slope * effect, SMALLEST_SHARE, 1.0))
    variance = (truth.effects * sizes) ** 2 @ np.ones(3) + spread.run**2
    return np.asarray(mean * np.exp(effect - variance / 2))


def closed_trial(truth: Truth, rng: np.random.Generator, n: int) -> Flags:
    """Whether intervals with a formula hold the truth: (n, methods, contrasts), best last."""
    response = draw_responses(truth, rng, n)
    problem, contrasts = truth.problem, truth.contrasts
    fitted = solve_scores(problem, response, np.ones(len(problem.groups)))
    spreads = covariances(problem, response, fitted)
    jackknife = _jackknife_covariances(problem, response, fitted)
    models = float(problem.groups.max())
    methods: list[tuple[Array, Array | float]] = [
        (spreads["naive"], NORMAL_FREEDOM),
        (spreads["robust"], NORMAL_FREEDOM),
        (spreads["robust"], models),
        (jackknife, models),
        (spreads["bias_reduced"], models),
        (spreads["bias_reduced"], truth.freedom),
    ]
    true = contrasts @ truth.coefficients
    flags = []
    for covariance, freedom in methods:
        error = np.sqrt(np.einsum("kp,npq,kq->nk", contrasts, covariance, contrasts))
        low, high = t_interval(fitted @ contrasts.T, error, freedom)
        flags.append((low <= true) & (true <= high))
    return np.stack(flags, axis=1)


def resampled_trial(truth: Truth, rng: np.random.Generator, n: int) -> Flags:
    """Whether the bootstraps hold the truth: (n, 2, contrasts), in the order of `RESAMPLED`."""
    response = draw_responses(truth, rng, n)
    problem, contrasts = truth.problem, truth.contrasts
    true = contrasts @ truth.coefficients
    pairs = []
    for row in response:
        estimator = partial(cluster_estimates, problem, row)
        draws = pairs_bootstrap(estimator, int(problem.groups.max()) + 1, rng=rng)
        low, high = percentile_interval(draws @ contrasts.T)
        pairs.append((low <= true) & (true <= high))
    weights = webb_weights(int(problem.groups.max()) + 1)
    wild = [
        score_wild_p_value(_scores_of(problem, response, contrast, value), weights) > 1 - CONFIDENCE
        for contrast, value in zip(contrasts, true, strict=True)
    ]
    return np.stack([np.array(pairs), np.column_stack(wild)], axis=1)


def coverage_table(
    truth: Truth,
    groups: list[str],
    *,
    n_datasets: int,
    n_resampled: int,
    seed: int,
    n_jobs: int = 1,
) -> pd.DataFrame:
    """Coverage of each interval at nominal 0.95, averaged over each group of contrasts.

    `groups` names each contrast's group, (k,). Columns: method, group, coverage, lowest (of any
    contrast in the group), n_datasets. Bootstraps, which are slow, run on `n_resampled` data sets.
    """
    closed = simulate_coverage(partial(closed_trial, truth), n_datasets, seed=seed, n_jobs=n_jobs)
    boots = simulate_coverage(
        partial(resampled_trial, truth), n_resampled, seed=seed + 1, n_jobs=n_jobs
    )
    sizes = [n_datasets] * len(closed) + [n_resampled] * len(boots)
    methods = [*CLOSED, RECOMMENDED, *RESAMPLED]
    rows = []
    for method, size, row in zip(methods, sizes, np.vstack([closed, boots]), strict=True):
        by_group = pd.Series(row).groupby(pd.Series(groups), sort=False)
        rows += [(method, name, v.mean(), v.min(), size) for name, v in by_group]
    return pd.DataFrame(rows, columns=["method", "group", "coverage", "lowest", "n_datasets"])


def coverage_by_form(
    fits: Sequence[Regression],
    table: pd.DataFrame,
    cells: pd.DataFrame,
    *,
    sizes: tuple[int, int],
    seed: int,
    n_jobs: int = 1,
) -> pd.DataFrame:
    """`coverage_table` of each fit taken for the truth, with a column form.

    Groups are the coefficients and the means at each GPU count of `cells`; `sizes` are the numbers
    of data sets for intervals with a formula and for bootstraps; `table` is what was fitted.
    """
    counts = [f"{count} GPUs" for count in cells["gpu_count"]]
    pieces = []
    for fit in fits:
        groups = ["coefficients"] * len(fit.coefficients) + counts
        truth = known_truth(fit, table, cells)
        piece = coverage_table(
            truth, groups, n_datasets=sizes[0], n_resampled=sizes[1], seed=seed, n_jobs=n_jobs
        )
        pieces.append(piece.assign(form=fit.form.name))
    return pd.concat(pieces, ignore_index=True)


def interval_table(fit: Regression, table: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Each coefficient's 95 % interval by every method, and the wild bootstrap's p against zero.

    `table` is what the fit was made from. Columns: form, term, estimate, then low and high by
    bias-reduced t, jackknife t and pairs bootstrap, and wild_p.
    """
    problem, terms = pose(fit.form, table), ["intercept", *fit.form.terms]
    response = table[fit.form.response].to_numpy(dtype=float)
    estimator = partial(cluster_estimates, problem, response)
    jackknife = cluster_jackknife(estimator, fit.freedom + 1)
    weights = webb_weights(fit.freedom + 1, rng)
    contributions = [
        null_contributions(problem, response, term=term, value=0.0) for term in range(len(terms))
    ]
    ends = {
        "bias_reduced": _t_ends(fit.coefficients, fit.covariance, fit.freedom),
        "jackknife": _t_ends(fit.coefficients, jackknife.covariance, fit.freedom),
        "pairs": percentile_interval(pairs_bootstrap(estimator, fit.freedom + 1, rng=rng)),
    }
    columns = {f"{name}_{end}": pair[i] for name, pair in ends.items() for i, end in ENDS}
    wild = [float(score_wild_p_value(z, weights)) for z in contributions]
    numbers = {"form": fit.form.name, "term": terms, "estimate": fit.coefficients}
    return pd.DataFrame({**numbers, **columns, "wild_p": wild})


def _t_ends(coefficients: Array, covariance: Array, freedom: int) -> tuple[Array, Array]:
    return t_interval(coefficients, np.sqrt(np.diag(covariance)), freedom)


def _jackknife_covariances(problem: Problem, response: Array, fitted: Array) -> Array:
    # `intervals.cluster_jackknife` of every data set at once
    n_clusters = int(problem.groups.max()) + 1
    weights = (1.0 - np.eye(n_clusters))[:, problem.groups]
    left_out = solve_scores(problem, response[:, None, :], weights)
    deviations = left_out - fitted[:, None, :]
    total = np.einsum("ngp,ngq->npq", deviations, deviations)
    return np.asarray((n_clusters - 1) / n_clusters * total)


def _scores_of(problem: Problem, response: Array, contrast: Array, value: float) -> Array:
    # the contrast becomes a coefficient: shifted by it, the other columns vanish at its cell
    term = int(np.argmax(contrast != 0))
    shifted = problem.design - np.outer(problem.design[:, term], contrast / contrast[term])
    shifted[:, term] = problem.design[:, term] / contrast[term]
    moved = replace(problem, design=shifted)
    return null_contributions(moved, response, term=term, value=value)
