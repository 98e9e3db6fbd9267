import numpy as np
import pytest

from hetinfer.comparators import COST_PREDICTORS, SHARE_PREDICTORS
from hetinfer.cost import cost_cells
from hetinfer.runs import load_recorded
from hetinfer.share import share_pairs
from hetinfer.validation import mean_absolute_errors, validation_errors


@pytest.fixture(scope="module")
def pairs():
    return share_pairs(load_recorded())


@pytest.mark.parametrize("name", SHARE_PREDICTORS)
def test_every_share_form_predicts_a_positive_share_of_each_run(pairs, name):
    predicted = SHARE_PREDICTORS[name](pairs, pairs)
    assert predicted.shape == (55,)
    assert ((predicted > 0) & (predicted < 1.1)).all()


def test_log_ols_is_least_squares_of_the_logs(pairs):
    rate, count = pairs["log2_rate"], pairs["log2_count"]
    design = np.column_stack([np.ones(55), rate, count, rate * count, rate**2])
    solved, *_ = np.linalg.lstsq(design, np.log(pairs["share"]))
    assert np.allclose(np.exp(design @ solved), SHARE_PREDICTORS["log OLS"](pairs, pairs))


def test_expected_forms_do_worse_than_the_chosen_ones(pairs):
    errors = mean_absolute_errors(validation_errors(pairs, "share", SHARE_PREDICTORS))
    error = errors.set_index("form")["model_error"]
    assert error[["log OLS", "Beta regression", "logit with parameters"]].min() > max(
        error["fractional logit"], error["mechanistic"]
    )


@pytest.mark.parametrize("name", COST_PREDICTORS)
def test_every_cost_form_predicts_a_positive_duration_of_each_run(name):
    cells = cost_cells(load_recorded())
    assert (COST_PREDICTORS[name](cells, cells) > 0).all()


def test_mixed_model_knows_the_models_it_was_fitted_to():
    cells = cost_cells(load_recorded())
    predictor = COST_PREDICTORS["MixedLM"]
    known = predictor(cells, cells)
    strangers = predictor(cells, cells.assign(model="new"))
    measured = cells["duration_s"]
    assert np.abs(np.log(known / measured)).mean() < np.abs(np.log(strangers / measured)).mean()
