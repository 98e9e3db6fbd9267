"""Models that a reader expects, fitted so that the chosen ones can be judged beside them.

Each is a function (runs to fit, runs to predict) -> predictions, made for `validation.py`; none is
quoted for a result.
"""

import warnings
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pandas as pd
import statsmodels.api as sm
from statsmodels.othermod.betareg import BetaModel
from statsmodels.tools.sm_exceptions import ConvergenceWarning

from hetinfer.cost import DRAIN, duration_predictor
from hetinfer.regression import Form, design_matrix
from hetinfer.share import (
    FRACTIONAL_LOGIT,
    MECHANISTIC,
    RELATIVE_LOGIT,
    descriptive_predictor,
    share_predictor,
)
from hetinfer.validation import Predictor

Array = npt.NDArray[np.float64]

LOG_SHARE = replace(FRACTIONAL_LOGIT, name="log OLS", response="share")
LOG_DURATION = replace(
    DRAIN, name="log duration", response="duration_s", terms=(*DRAIN.terms, "log2_rate*log2_rate")
)


def predict_by_log_ols(fitted: pd.DataFrame, cells: pd.DataFrame) -> Array:
    """Least squares of ln(share) on the fractional logit's terms."""
    return _predict_by_ols(LOG_SHARE, fitted, cells)


def predict_by_beta(fitted: pd.DataFrame, cells: pd.DataFrame) -> Array:
    """Beta regression on the fractional logit's terms, shares drawn in to (n - 1/2)/n at most.

    (s (n-1) + 1/2)/n of n shares, for a Beta has no mass at 1. Source: Smithson and Verkuilen
    (2006), Psychological Methods 11.
    """
    n = len(fitted)
    inner = (fitted["capped_share"].to_numpy() * (n - 1) + 0.5) / n
    result = BetaModel(inner, design_matrix(FRACTIONAL_LOGIT, fitted)).fit(disp=False)
    return np.asarray(result.predict(design_matrix(FRACTIONAL_LOGIT, cells)))


def predict_cost_by_log_ols(fitted: pd.DataFrame, cells: pd.DataFrame) -> Array:
    """Least squares of ln(duration) on the drain's terms and the squared log2 rate: no window."""
    return _predict_by_ols(LOG_DURATION, fitted, cells)


def predict_cost_by_mixed(fitted: pd.DataFrame, cells: pd.DataFrame) -> Array:
    """The same with a random intercept for the model (MixedLM); 0 for a model not fitted.

    Powell's optimiser, for the default one meets a singular matrix on these runs; the warning that
    the intercepts' variance is near 0 is a finding, not a failure.
    """
    response = np.log(fitted["duration_s"].to_numpy())
    mixed = sm.MixedLM(response, design_matrix(LOG_DURATION, fitted), fitted["model"].to_numpy())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = mixed.fit(method="powell")
    intercepts = {model: float(effect.iloc[0]) for model, effect in result.random_effects.items()}
    known = cells["model"].map(intercepts).fillna(0.0).to_numpy(dtype=float)
    return _exp(design_matrix(LOG_DURATION, cells) @ result.fe_params + known)


def _predict_by_ols(form: Form, fitted: pd.DataFrame, cells: pd.DataFrame) -> Array:
    result = sm.OLS(np.log(fitted[form.response]), design_matrix(form, fitted)).fit()
    return _exp(result.predict(design_matrix(form, cells)))


def _exp(logs: object) -> Array:
    return np.asarray(np.exp(np.asarray(logs, dtype=float)))


def _with_terms(form: Form, *terms: str) -> Form:
    return replace(form, terms=terms)


SHARE_PREDICTORS: Mapping[str, Predictor] = {
    "mean by rate": descriptive_predictor,
    "fractional logit": share_predictor(FRACTIONAL_LOGIT),
    "relative-rate logit": share_predictor(RELATIVE_LOGIT),
    "mechanistic": share_predictor(MECHANISTIC),
    "logit, rate alone": share_predictor(
        _with_terms(FRACTIONAL_LOGIT, "log2_rate", "log2_rate*log2_rate")
    ),
    "logit with parameters": share_predictor(
        _with_terms(FRACTIONAL_LOGIT, *FRACTIONAL_LOGIT.terms, "log2_parameters")
    ),
    "mechanistic with parameters": share_predictor(
        _with_terms(MECHANISTIC, *MECHANISTIC.terms, "log2_parameters")
    ),
    "constant drain ratio": share_predictor(_with_terms(MECHANISTIC)),
    "log OLS": predict_by_log_ols,
    "Beta regression": predict_by_beta,
}

COST_PREDICTORS: Mapping[str, Predictor] = {
    "drain": duration_predictor(DRAIN),
    "drain with GPU count": duration_predictor(_with_terms(DRAIN, *DRAIN.terms, "log2_count")),
    "drain without weights": duration_predictor(_with_terms(DRAIN, "log2_rate", "on_4090")),
    "log-quadratic OLS": predict_cost_by_log_ols,
    "MixedLM": predict_cost_by_mixed,
}
