"""Fisher scoring of many generalised linear fits at once, and their covariances by cluster.

Resampling and simulation refit one small design thousands of times; here all refits are one array
operation. Leading axes (...) run over weights, responses, or both. The single fits that the project
quotes are statsmodels' (`regression.py`); tests hold the two to each other.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Link = Literal["logit", "log"]

MOST_STEPS = 100
STEP_TOLERANCE = 1e-10
UNSETTLED_STEP = 1e-6  # a last step above this is no solution
LARGEST_STEP = 3.0  # of any linear predictor: keeps a bad start from leaping out of range
SINGULAR_EIGENVALUE = 1e-9  # of the information scaled to a unit diagonal
RIDGE_FRAC = 1e-13  # of the information's trace: lets a solver pass fits that are flagged anyway


@dataclass(frozen=True)
class Problem:
    """What every refit shares: design (n, p), cluster codes (n,), offset (n,), and the link.

    `logit` is the fractional logit (binomial variance), `log` the Gaussian with log link.
    """

    design: Array
    groups: npt.NDArray[np.intp]
    offset: Array
    link: Link


def mean_and_slope(link: Link, predictor: Array) -> tuple[Array, Array]:
    """Mean of the response at a linear predictor, and its derivative.

    logit: m = 1/(1+exp(-eta)), m(1-m); log: m = exp(eta), m.
    """
    if link == "log":
        mean = np.exp(predictor)
        return mean, mean
    mean = 1.0 / (1.0 + np.exp(-predictor))
    return mean, mean * (1.0 - mean)


def solve_scores(problem: Problem, response: Array, weights: Array) -> Array:
    """Coefficients (..., p) with sum_i w_i x_i slope_i (y_i - mean_i) / variance_i = 0.

    `response` and `weights` are (..., n) and broadcast. A row of NaN where the weighted design is
    singular or scoring does not settle.
    """
    response, weights = np.broadcast_arrays(response, weights)
    design, link = problem.design, problem.link
    guess = np.log(response) - problem.offset if link == "log" else 4.0 * (response - 0.5)
    start = _information(design, weights)
    coefficients = _solve(start, (weights * guess) @ design)
    for _ in range(MOST_STEPS):
        mean, slope = mean_and_slope(link, problem.offset + coefficients @ design.T)
        scaled = weights * _score_scale(link, slope)
        step = _solve(_information(design, scaled * slope), (scaled * (response - mean)) @ design)
        longest = np.abs(step @ design.T).max(axis=-1, keepdims=True)
        step = step * np.minimum(1.0, LARGEST_STEP / np.maximum(longest, LARGEST_STEP))
        coefficients = coefficients + step
        if np.abs(step).max() < STEP_TOLERANCE:
            break
    lost = _is_singular(start) | ~(np.abs(step).max(axis=-1) < UNSETTLED_STEP)
    return np.where(lost[..., None], np.nan, coefficients)


def cluster_estimates(problem: Problem, response: Array, cluster_weights: Array) -> Array:
    """`solve_scores` with one weight a cluster, (n_draws, G): 0 leaves a model out."""
    return solve_scores(problem, response, cluster_weights[:, problem.groups])


def cluster_scores(problem: Problem, response: Array, coefficients: Array) -> Array:
    """Scores by cluster (..., G, p) at given coefficients: their sum is zero at the solution."""
    mean, slope = mean_and_slope(problem.link, problem.offset + coefficients @ problem.design.T)
    rows = (_score_scale(problem.link, slope) * (response - mean))[..., None] * problem.design
    members = np.eye(problem.groups.max() + 1)[problem.groups]
    return np.asarray(np.einsum("...np,ng->...gp", rows, members))


def covariances(problem: Problem, response: Array, coefficients: Array) -> dict[str, Array]:
    """Covariances (..., p, p) of the coefficients: naive, robust, and bias_reduced.

    With A the information and s_g a cluster's score: naive phi A^-1; robust A^-1 sum s_g s_g' A^-1;
    bias_reduced the same with residuals (I - H_g)^-1 r_g, H_g the cluster's leverage, which for a
    linear fit is the delete-one-cluster jackknife. Source: Mancl and DeRouen (2001), Biometrics 57.
    """
    design, groups = problem.design, problem.groups
    mean, slope = mean_and_slope(problem.link, problem.offset + coefficients @ design.T)
    scale = _score_scale(problem.link, slope)
    residual = response - mean
    inverse = np.linalg.inv(_information(design, scale * slope))
    spread = (residual**2 * scale / slope).sum(axis=-1) / (len(design) - design.shape[1])
    robust = reduced = np.zeros_like(inverse)
    for group in range(groups.max() + 1):
        rows = groups == group
        left = slope[..., rows, None] * design[rows]
        right = scale[..., rows, None] * design[rows]
        leverage = left @ inverse @ np.swapaxes(right, -1, -2)
        freed = np.linalg.solve(np.eye(rows.sum()) - leverage, residual[..., rows, None])
        robust = robust + _outer(np.einsum("...np,...n->...p", right, residual[..., rows]))
        reduced = reduced + _outer(np.einsum("...np,...n->...p", right, freed[..., 0]))
    return {
        "naive": spread[..., None, None] * inverse,
        "robust": inverse @ robust @ inverse,
        "bias_reduced": inverse @ reduced @ inverse,
    }


def null_contributions(problem: Problem, response: Array, *, term: int, value: float) -> Array:
    """Clusters' scores (..., G) for one coefficient under the hypothesis that it equals `value`.

    The other coefficients are fitted under it; z_g is the coefficient's row of A^-1 s_g there.
    """
    others = np.delete(problem.design, term, axis=1)
    offset = problem.offset + value * problem.design[:, term]
    restricted = Problem(others, problem.groups, offset, problem.link)
    fitted = solve_scores(restricted, response, np.ones(len(others)))
    coefficients = np.insert(fitted, term, value, axis=-1)
    _, slope = mean_and_slope(problem.link, problem.offset + coefficients @ problem.design.T)
    information = _information(problem.design, _score_scale(problem.link, slope) * slope)
    row = np.linalg.inv(information)[..., term, :]
    scores = cluster_scores(problem, response, coefficients)
    return np.asarray(np.einsum("...gp,...p->...g", scores, row))


def _score_scale(link: Link, slope: Array) -> Array:
    # slope / variance: 1 for the logit, whose variance m(1-m) is its slope; the slope for Gaussian
    return np.ones_like(slope) if link == "logit" else slope


def _information(design: Array, weights: Array) -> Array:
    products = design[:, :, None] * design[:, None, :]
    return np.asarray(np.tensordot(weights, products, axes=1))


def _solve(information: Array, score: Array) -> Array:
    size = information.shape[-1]
    ridge = RIDGE_FRAC * np.trace(information, axis1=-2, axis2=-1) + np.finfo(float).tiny
    padded = information + ridge[..., None, None] * np.eye(size)
    return np.asarray(np.linalg.solve(padded, score[..., None])[..., 0])


def _is_singular(information: Array) -> npt.NDArray[np.bool_]:
    diagonal = np.sqrt(np.einsum("...pp->...p", information))
    scaled = information / np.maximum(diagonal[..., :, None] * diagonal[..., None, :], 1e-300)
    return np.asarray(np.linalg.eigvalsh(scaled)[..., 0] < SINGULAR_EIGENVALUE)


def _outer(scores: Array) -> Array:
    return np.asarray(scores[..., :, None] * scores[..., None, :])
