import numpy as np
import pandas as pd

from hetinfer.validation import leave_one_out, mean_absolute_errors, validation_errors

TABLE = pd.DataFrame(
    {
        "model": ["a", "a", "b", "b"],
        "gpu": "g",
        "gpu_count": 1,
        "rate_requests_per_s": [1.0, 2.0, 1.0, 2.0],
        "y": [1.0, 2.0, 3.0, 4.0],
    },
    index=[7, 3, 5, 1],
)


def mean_of_the_rest(fitted, cells):
    return np.full(len(cells), fitted["y"].mean())


def test_each_row_is_predicted_from_the_other_groups():
    predicted = leave_one_out(TABLE, "model", mean_of_the_rest)
    assert predicted.to_dict() == {7: 3.5, 3: 3.5, 5: 1.5, 1: 1.5}


def test_errors_are_predicted_less_measured():
    errors = validation_errors(TABLE, "y", {"mean": mean_of_the_rest})
    model, rate = errors.query("left_out == 'model'"), errors.query("left_out == 'rate'")
    assert model["error"].tolist() == [2.5, 1.5, -1.5, -2.5]
    assert rate["error"].tolist() == [2.0, 0.0, 0.0, -2.0]
    assert model["error_frac"].tolist() == [2.5, 0.75, -0.5, -0.625]


def test_mean_absolute_errors_have_one_row_a_form():
    errors = validation_errors(TABLE, "y", {"mean": mean_of_the_rest})
    row = mean_absolute_errors(errors).iloc[0]
    assert row["form"] == "mean"
    assert row["model_error"] == 2.0
    assert row["rate_error"] == 1.0
    assert row["rate_error_frac"] == (2 + 0 + 0 + 0.5) / 4
