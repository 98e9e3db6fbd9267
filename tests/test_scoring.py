import math

import numpy as np
import pytest

from hetinfer.scoring import (
    Problem,
    cluster_estimates,
    cluster_scores,
    covariances,
    null_contributions,
    solve_scores,
)

GROUPS = np.array([0, 0, 1, 1, 2, 2])
ONES = np.ones((6, 1))
SHARES = np.array([0.9, 0.8, 0.7, 0.9, 0.6, 0.8])


def problem(link, design=ONES, offset=None):
    return Problem(design, GROUPS, np.zeros(6) if offset is None else offset, link)


def test_logit_intercept_is_the_logit_of_the_mean():
    intercept = solve_scores(problem("logit"), SHARES, np.ones(6))
    mean = SHARES.mean()
    assert math.isclose(math.log(mean / (1 - mean)), intercept[0])


def test_log_intercept_with_offset_is_the_least_squares_ratio():
    base, drain = np.array([1.0, 2, 3, 4, 5, 6]), np.array([2.0, 3, 7, 9, 9, 14])
    intercept = solve_scores(problem("log", offset=np.log(base)), drain, np.ones(6))
    assert math.isclose((base @ drain) / (base @ base), math.exp(intercept[0]))


def test_logit_of_two_groups_is_the_difference_of_their_logits():
    side = np.array([0.0, 1, 0, 1, 0, 1])
    slope = solve_scores(problem("logit", np.column_stack([np.ones(6), side])), SHARES, np.ones(6))
    low, high = SHARES[side == 0].mean(), SHARES[side == 1].mean()
    assert math.isclose(math.log(high / (1 - high)) - math.log(low / (1 - low)), slope[1])


def test_weight_two_is_a_run_counted_twice():
    weights = np.array([2.0, 1, 1, 1, 1, 1])
    doubled = np.append(SHARES, SHARES[0]).mean()
    intercept = solve_scores(problem("logit"), SHARES, weights)
    assert math.isclose(math.log(doubled / (1 - doubled)), intercept[0])


def test_singular_weights_give_no_number():
    design = np.column_stack([np.ones(6), [1.0, 2, 0, 0, 0, 0]])
    estimates = cluster_estimates(problem("logit", design), SHARES, 1.0 - np.eye(3))
    assert np.isnan(estimates[0]).all()
    assert np.isfinite(estimates[1:]).all()


def test_scores_vanish_at_the_solution():
    coefficients = solve_scores(problem("logit"), SHARES, np.ones(6))
    scores = cluster_scores(problem("logit"), SHARES, coefficients)
    assert scores.shape == (3, 1)
    assert np.allclose(0, scores.sum(axis=0))


def test_bias_reduced_variance_of_a_mean_by_hand():
    coefficients = solve_scores(problem("logit"), SHARES, np.ones(6))
    mean = SHARES.mean()
    sums = np.array([SHARES[g == GROUPS].sum() - 2 * mean for g in range(3)])
    expected = ((sums * 3 / 2) ** 2).sum() / (6 * mean * (1 - mean)) ** 2
    variance = covariances(problem("logit"), SHARES, coefficients)["bias_reduced"]
    assert math.isclose(expected, variance[0, 0])


def test_many_responses_are_fitted_as_one_by_one():
    both = np.stack([SHARES, SHARES[::-1]])
    together = solve_scores(problem("logit"), both, np.ones(6))
    alone = [solve_scores(problem("logit"), row, np.ones(6)) for row in both]
    assert np.allclose(together, alone)


@pytest.mark.parametrize("link", ["logit", "log"])
def test_contributions_cancel_where_the_hypothesis_is_the_estimate(link):
    design = np.column_stack([np.ones(6), [0.0, 1, 2, 0, 1, 2]])
    posed = problem(link, design)
    estimate = solve_scores(posed, SHARES, np.ones(6))
    contributions = null_contributions(posed, SHARES, term=1, value=float(estimate[1]))
    assert contributions.shape == (3,)
    assert math.isclose(0, contributions.sum(), abs_tol=1e-9)
