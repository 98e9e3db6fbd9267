import numpy as np
import pytest

from hetinfer.errors import InputError
from hetinfer.intervals import cluster_jackknife
from hetinfer.regression import (
    coefficient_table,
    design_matrix,
    fit_regression,
    influence,
    lack_of_fit,
    pose,
    predict_mean,
)
from hetinfer.runs import load_recorded
from hetinfer.scoring import cluster_estimates, covariances, solve_scores
from hetinfer.share import FRACTIONAL_LOGIT, MECHANISTIC, rate_grid, share_pairs

FORMS = [FRACTIONAL_LOGIT, MECHANISTIC]


@pytest.fixture(scope="module")
def pairs():
    return share_pairs(load_recorded())


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_coefficients_and_covariance_agree_with_an_independent_solve(pairs, form):
    fit = fit_regression(form, pairs)
    problem, response = pose(form, pairs), pairs[form.response].to_numpy()
    solved = solve_scores(problem, response, np.ones(len(pairs)))
    assert np.allclose(solved, fit.coefficients, rtol=1e-7)
    bias_reduced = covariances(problem, response, solved)["bias_reduced"]
    assert np.allclose(bias_reduced, fit.covariance, rtol=1e-5)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_bias_reduced_errors_are_near_the_jackknifes(pairs, form):
    fit = fit_regression(form, pairs)
    problem, response = pose(form, pairs), pairs[form.response].to_numpy()
    jackknife = cluster_jackknife(lambda w: cluster_estimates(problem, response, w), 5)
    ratio = np.sqrt(np.diag(jackknife.covariance) / np.diag(fit.covariance))
    assert ((ratio > 0.8) & (ratio < 1.2)).all()


def test_scores_of_the_fit_vanish(pairs):
    fit = fit_regression(FRACTIONAL_LOGIT, pairs)
    design = design_matrix(FRACTIONAL_LOGIT, pairs)
    residual = fit.rows["response"] - fit.rows["fitted"]
    assert np.allclose(0, design.T @ residual.to_numpy(), atol=1e-6)


def test_terms_are_products_of_columns(pairs):
    design = design_matrix(FRACTIONAL_LOGIT, pairs.query("gpu_count == 4"))
    assert (design[:, 2] == 2).all()
    assert (design[:, 3] == design[:, 1] * 2).all()
    assert (design[:, 4] == design[:, 1] ** 2).all()


def test_interval_of_a_coefficient_uses_four_degrees_of_freedom(pairs):
    row = coefficient_table(fit_regression(FRACTIONAL_LOGIT, pairs)).iloc[1]
    assert np.isclose(2.776445105, (row["high"] - row["estimate"]) / row["std_error"])


def test_prediction_has_the_freedom_of_the_models_that_inform_it(pairs):
    fit = fit_regression(FRACTIONAL_LOGIT, pairs)
    predicted = predict_mean(fit, rate_grid([1, 2, 3, 4, 8, 16], [8.0]))
    assert predicted["freedom"].tolist() == [4, 2, 2, 2, 0, 0]
    assert predicted["low"].isna().tolist() == [False] * 4 + [True] * 2


def test_influence_leaves_each_model_out_once(pairs):
    fit = fit_regression(FRACTIONAL_LOGIT, pairs)
    left = influence(fit, pairs)
    without = pairs[~pairs["model"].str.endswith(left["left_out"].iloc[0])]
    assert len(left) == 5
    refitted = fit_regression(FRACTIONAL_LOGIT, without).coefficients
    assert np.allclose(refitted, left.iloc[0, 1:].to_numpy(dtype=float))


def test_lack_of_fit_by_hand():
    measured, predicted = np.array([1.0, 2.0, 4.0]), np.array([1.1, 2.0, 4.0])
    residual, ratio, p_value = lack_of_fit(
        measured, predicted, n_parameters=2, noise_frac=0.05, noise_freedom=10
    )
    assert np.isclose(0.1, residual)
    assert np.isclose(4, ratio)
    assert np.isclose(0.0734, p_value, atol=5e-5)


def test_two_models_are_too_few(pairs):
    two = pairs[pairs["model"].isin(pairs["model"].unique()[:2])]
    with pytest.raises(InputError, match="too few models"):
        fit_regression(FRACTIONAL_LOGIT, two)


def test_a_single_gpu_count_is_singular(pairs):
    with pytest.raises(InputError, match="a singular design"):
        fit_regression(FRACTIONAL_LOGIT, pairs.query("gpu_count == 1"))


def test_a_term_that_one_model_alone_determines_is_named(pairs):
    single = pairs["gpu_count"] == 1
    alone = pairs["model"].str.contains("Qwen-7B")
    with pytest.raises(InputError, match="singular without DeepSeek-R1-Distill-Qwen-7B"):
        fit_regression(FRACTIONAL_LOGIT, pairs[single | alone])


@pytest.mark.parametrize("value", [0.0, -0.1, 1.5, np.nan, np.inf])
def test_a_response_out_of_range_is_an_error(pairs, value):
    wrong = pairs.assign(capped_share=np.where(pairs.index == 3, value, pairs["capped_share"]))
    with pytest.raises(InputError, match="capped_share"):
        fit_regression(FRACTIONAL_LOGIT, wrong)


def test_a_term_without_a_value_is_an_error(pairs):
    with pytest.raises(InputError, match="without a value"):
        fit_regression(FRACTIONAL_LOGIT, pairs.assign(log2_count=np.nan))
