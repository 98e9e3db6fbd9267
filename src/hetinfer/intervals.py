"""How sure a number is: noise of one run, intervals for few clusters, and whether they keep faith.

A cluster is what varies independently, here a language model: its runs share its kernels, its reply
lengths and its server, so they are one draw, not fifty.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import joblib
import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from hetinfer.errors import InputError
from hetinfer.runs import CELL

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
# (n_draws, n_clusters) weights -> (n_draws, n_numbers); a row of NaN where a draw has no answer
Estimator = Callable[[Array], Array]

CONFIDENCE = 0.95
FEWEST_CLUSTERS = 3  # two give one difference, and t with one degree of freedom says nothing
WEBB_VALUES = np.sqrt([0.5, 1.0, 1.5])  # each with both signs: Webb's six points
MOST_WEBB_DRAWS = 50_000  # up to this many sign patterns are listed, beyond it drawn
COVERAGE_CHUNK = 50  # data sets per parallel piece; fixed, so that results do not depend on jobs


def replicate_noise(runs: pd.DataFrame, column: str) -> float:
    """Relative standard deviation of one run's `column`, from runs of one cell made twice or more.

    s = sqrt( sum over cells and replicates (ln x - cell's mean ln x)^2 / sum (replicates - 1) ),
    which for pairs is the root mean square of ln(x2/x1) over sqrt 2. Dimensionless; 0.003 is 0.3 %.
    Raises InputError when no cell has two runs, or a value is not positive and finite.
    """
    repeated = runs[runs.duplicated(CELL, keep=False)]
    if repeated.empty:
        raise _interval_error("no replicates", "every cell once", "a cell with two runs or more")
    if column not in repeated:
        raise _interval_error("unknown column", repr(column), "a numeric column of the runs")
    values = repeated[column].to_numpy(dtype=float)
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise _interval_error(f"{column} of replicates", values.min(), "finite values above 0")
    logs = pd.Series(np.log(values), index=repeated.index)
    cells = [repeated[name] for name in CELL]
    deviations = logs - logs.groupby(cells).transform("mean")
    return float(np.sqrt((deviations**2).sum() / replicate_freedom(runs)))


def replicate_freedom(runs: pd.DataFrame) -> int:
    """Degrees of freedom of `replicate_noise`: runs of repeated cells less the number of cells."""
    repeated = runs[runs.duplicated(CELL, keep=False)]
    return len(repeated) - len(repeated.drop_duplicates(CELL))


def t_interval(
    estimate: Array, std_error: Array, freedom: Array | float, confidence: float = CONFIDENCE
) -> tuple[Array, Array]:
    """Student's interval: estimate -+ t(freedom) x standard error; NaN where freedom is below 1."""
    enough = np.asarray(freedom, dtype=float) >= 1
    critical = stats.t.ppf((1 + confidence) / 2, np.where(enough, freedom, 1))
    half = np.where(enough, critical, np.nan) * std_error
    return estimate - half, estimate + half


def mean_interval(values: Array, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Mean of one value a cluster with its t interval; the ends are NaN for a single value."""
    if values.size == 0:
        raise _interval_error("no values", "0", "one value a cluster")
    mean = float(values.mean())
    if values.size == 1:
        return mean, float("nan"), float("nan")
    std_error = values.std(ddof=1) / np.sqrt(values.size)
    low, high = t_interval(np.array(mean), std_error, values.size - 1, confidence)
    return mean, float(low), float(high)


@dataclass(frozen=True)
class Jackknife:
    """Estimates (k,), the same without each cluster (G, k), and their covariance (k, k)."""

    estimate: Array
    left_out: Array
    covariance: Array
    freedom: int


def cluster_jackknife(estimator: Estimator, n_clusters: int) -> Jackknife:
    """Delete-one-cluster jackknife: V = (G-1)/G sum over g of (b_(g) - b)(b_(g) - b)'; G-1 freedom.

    Raises InputError for fewer than three clusters, or an estimate that one cluster alone allows.
    Source: MacKinnon, Nielsen and Webb (2023), Journal of Econometrics 232, their CV3.
    """
    check_clusters(n_clusters, where="cluster_jackknife")
    all_in = estimator(np.ones((1, n_clusters)))[0]
    left_out = estimator(1.0 - np.eye(n_clusters))
    if not (np.isfinite(all_in).all() and np.isfinite(left_out).all()):
        raise _interval_error(
            "estimate hangs on one cluster", "none without it", "an estimate without each cluster"
        )
    deviations = left_out - all_in
    covariance = (n_clusters - 1) / n_clusters * deviations.T @ deviations
    return Jackknife(all_in, left_out, covariance, n_clusters - 1)


def pairs_bootstrap(
    estimator: Estimator, n_clusters: int, *, rng: np.random.Generator, n_draws: int = 999
) -> Array:
    """Estimates (n_kept, k) from clusters drawn with replacement; draws without an answer drop out.

    Each composition is estimated once, however often drawn: five clusters have only 126.
    Raises InputError for fewer than three clusters or when fewer than half of the draws remain.
    """
    check_clusters(n_clusters, where="pairs_bootstrap")
    counts = rng.multinomial(n_clusters, np.full(n_clusters, 1 / n_clusters), n_draws)
    distinct, position = np.unique(counts, axis=0, return_inverse=True)
    draws = estimator(distinct.astype(float))[position.ravel()]
    kept = draws[np.isfinite(draws).all(axis=1)]
    if 2 * len(kept) < n_draws:
        raise _interval_error(
            "bootstrap", f"{len(kept)} usable draws of {n_draws}", "at least half of them"
        )
    return kept


def percentile_interval(draws: Array, confidence: float = CONFIDENCE) -> tuple[Array, Array]:
    """Equal-tailed percentiles of bootstrap draws (n_draws, k): two arrays (k,)."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(draws, [tail, 1 - tail], axis=0)
    return low, high


def webb_weights(n_clusters: int, rng: np.random.Generator | None = None) -> Array:
    """Webb's six-point weights (n_draws, n_clusters): all 6^G patterns, or draws where too many.

    -+sqrt(1/2), -+1, -+sqrt(3/2), equally likely: mean 0, variance 1. Five clusters have 7,776
    patterns, so that no seed enters; with two-point weights they would have 32, too few for 5 %.
    Source: Webb (2023), Canadian Journal of Economics 56.
    """
    values = np.concatenate([-WEBB_VALUES, WEBB_VALUES])
    if values.size**n_clusters <= MOST_WEBB_DRAWS:
        return np.array(list(itertools.product(values, repeat=n_clusters)))
    if rng is None:
        raise _interval_error(
            "no random generator", f"{n_clusters} clusters", "rng=, where patterns must be drawn"
        )
    return rng.choice(values, (MOST_WEBB_DRAWS, n_clusters))


def score_wild_p_value(contributions: Array, weights: Array) -> Array:
    """Two-sided p of a null hypothesis from clusters' scores under it, z of shape (..., G).

    T = sum z_g / sqrt(sum z_g^2); p is the fraction of weight patterns w for which |T| of w_g z_g
    is at least as large. z_g: the cluster's score at the restricted fit, projected on the
    coefficient in question. Source: Kline and Santos (2012), Journal of Econometric Methods 1.
    """
    observed = contributions.sum(-1) ** 2 / (contributions**2).sum(-1)
    sums = (contributions @ weights.T) ** 2
    sizes = contributions**2 @ (weights**2).T
    slack = 1 - 1e-12  # the pattern of equal weights is the data's own: a tie, not a miss
    return np.asarray((sums >= slack * observed[..., None] * sizes).mean(axis=-1))


def quantile_interval(
    values: Array, quantile: float, confidence: float = CONFIDENCE
) -> tuple[float, float, float]:
    """Sample quantile with a distribution-free interval between two order statistics.

    Ranks l < u are the narrowest symmetric pair with P(l <= B < u) >= confidence, B binomial(n,
    quantile), so that the interval from the l-th to the u-th smallest value covers the quantile at
    least that often. Raises InputError when n values are too few to bound it on both sides.
    """
    ordered = np.sort(values)
    tail = (1 - confidence) / 2
    low = int(stats.binom.ppf(tail, ordered.size, quantile))
    high = int(stats.binom.isf(tail, ordered.size, quantile)) + 1
    if low < 1 or high > ordered.size:
        raise _interval_error(
            f"interval of the {quantile:g} quantile",
            f"{ordered.size} values",
            f"enough to bound it on both sides at {confidence:g}",
        )
    return float(np.quantile(ordered, quantile)), float(ordered[low - 1]), float(ordered[high - 1])


def band_limit(n_clusters: int) -> float:
    """Highest confidence that a distribution-free band for a new cluster can have: G/(G+1).

    If G+1 clusters are exchangeable, the new one's error is the largest of all G+1 with probability
    1/(G+1); the widest band that G errors can draw, at the largest of them, misses just then. Five
    models give 0.833; 0.95 needs 19 of them.
    """
    check_clusters(n_clusters, where="band_limit")
    return n_clusters / (n_clusters + 1)


def simulate_coverage(
    trial: Callable[[np.random.Generator, int], Flags],
    n_datasets: int,
    *,
    seed: int,
    n_jobs: int = 1,
) -> Array:
    """Fraction of simulated data sets whose interval holds the truth, in one trial's shape.

    `trial(rng, n)` returns flags of shape (n, ...). Data sets come in pieces of fixed size, each
    with its own stream spawned from `seed`: the numbers are the same for any `n_jobs`.
    """
    if n_datasets < 1:
        raise _interval_error("no data sets", n_datasets, "at least one")
    starts = range(0, n_datasets, COVERAGE_CHUNK)
    sizes = [min(COVERAGE_CHUNK, n_datasets - start) for start in starts]
    streams = np.random.SeedSequence(seed).spawn(len(sizes))
    pieces = joblib.Parallel(n_jobs=n_jobs)(
        joblib.delayed(trial)(np.random.default_rng(stream), size)
        for stream, size in zip(streams, sizes, strict=True)
    )
    return np.asarray(np.concatenate(list(pieces)).mean(axis=0))


def check_clusters(n_clusters: int, *, where: object) -> None:
    """InputError unless there are at least three clusters."""
    if n_clusters < FEWEST_CLUSTERS:
        raise InputError(
            "too few models",
            got=n_clusters,
            expected=f"at least {FEWEST_CLUSTERS}: intervals come from variation between models",
            where=where,
            do="add runs of more models on both GPUs",
        )


def _interval_error(what: str, got: object, expected: str) -> InputError:
    return InputError(
        what,
        got=got,
        expected=expected,
        where="intervals",
        do="pass more runs, or drop the interval",
    )
