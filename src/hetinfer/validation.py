"""How well a model predicts what it has not seen: one group of runs left out at a time."""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

Array = npt.NDArray[np.float64]
# (runs to fit, runs to predict) -> one number a run to predict
Predictor = Callable[[pd.DataFrame, pd.DataFrame], Array]


def leave_one_out(table: pd.DataFrame, by: str, predictor: Predictor) -> pd.Series:
    """Each row predicted from the rows of the other groups of column `by`; the table's index."""
    pieces = []
    for _, left_out in table.groupby(by, sort=False):
        kept = table.drop(index=left_out.index)
        pieces.append(pd.Series(predictor(kept, left_out), index=left_out.index))
    return pd.concat(pieces).reindex(table.index)


def validation_errors(
    table: pd.DataFrame, response: str, predictors: Mapping[str, Predictor]
) -> pd.DataFrame:
    """Left-out predictions of every row by every form, a model and a rate at a time.

    Columns: form, left_out (`model` or `rate`), model, gpu_count, rate_requests_per_s, measured,
    predicted, error (predicted - measured), error_frac (error / measured).
    """
    pieces = []
    for form, predictor in predictors.items():
        for by, name in (("model", "model"), ("rate_requests_per_s", "rate")):
            predicted = leave_one_out(table, by, predictor)
            piece = table[["model", "gpu", "gpu_count", "rate_requests_per_s"]].assign(
                form=form, left_out=name, measured=table[response], predicted=predicted
            )
            pieces.append(piece)
    errors = pd.concat(pieces, ignore_index=True)
    missed = errors["predicted"] - errors["measured"]
    return errors.assign(error=missed, error_frac=missed / errors["measured"])


def mean_absolute_errors(errors: pd.DataFrame) -> pd.DataFrame:
    """Mean absolute errors by form, in the response's unit and relative, one row a form.

    Columns: form, model_error, model_error_frac (a model left out), rate_error, rate_error_frac.
    """
    sizes = errors.assign(error=errors["error"].abs(), error_frac=errors["error_frac"].abs())
    means = sizes.groupby(["left_out", "form"], sort=False)[["error", "error_frac"]].mean()
    return pd.concat(
        [means.loc[left_out].add_prefix(f"{left_out}_") for left_out in ("model", "rate")], axis=1
    ).reset_index()
