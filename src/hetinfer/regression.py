"""A regression over few clusters: its form, its fit by statsmodels, predictions, diagnostics."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import statsmodels.api as sm
from scipy import stats

from hetinfer.errors import InputError
from hetinfer.hardware import short_name
from hetinfer.intervals import CONFIDENCE, check_clusters, t_interval
from hetinfer.runs import CONFIGURATION
from hetinfer.scoring import Link, Problem, cluster_estimates, mean_and_slope

Array = npt.NDArray[np.float64]

RANK_TOLERANCE = 1e-8  # of the design's columns scaled to length 1


@dataclass(frozen=True)
class Form:
    """What is regressed on what: response, link, terms (columns joined by `*`), offset column.

    `logit` is the fractional logit, `log` the Gaussian with log link. Every form has an intercept.
    """

    name: str
    response: str
    link: Link
    terms: tuple[str, ...]
    offset: str | None = None


@dataclass(frozen=True)
class Regression:
    """A fit: coefficients (p,) and covariance (p, p), intercept first, and what it was fitted to.

    `rows` has one row a response: model, gpu, gpu_count, the response, the fitted mean and the
    linear predictor without offset. `freedom` is models less one.
    """

    form: Form
    coefficients: Array
    covariance: Array
    freedom: int
    rows: pd.DataFrame


def design_matrix(form: Form, table: pd.DataFrame) -> Array:
    """Columns of the form's terms, (n, 1 + terms): a term is a product of the table's columns."""
    columns = [np.ones(len(table))]
    for term in form.terms:
        factors = [table[name].to_numpy(dtype=float) for name in term.split("*")]
        columns.append(np.prod(factors, axis=0))
    return np.asarray(np.column_stack(columns), dtype=float)


def pose(form: Form, table: pd.DataFrame) -> Problem:
    """The form on a table as arrays: design, codes of models by first appearance, offset."""
    groups, _ = pd.factorize(table["model"])
    return Problem(design_matrix(form, table), groups, _offset(form, table), form.link)


def fit_regression(form: Form, table: pd.DataFrame) -> Regression:
    """Fit by generalised estimating equations, independence working correlation, model as cluster.

    Coefficients solve sum over runs of x slope (y - mean) / variance = 0; their covariance is the
    bias-reduced sandwich over models (Mancl and DeRouen 2001), for t with models - 1 freedom.
    Raises InputError for fewer than three models, a response out of range, or a design whose terms
    cannot be told apart, with all models or without any one of them.
    """
    check_clusters(table["model"].nunique(), where=f"fit of {form.name}")
    problem = pose(form, table)
    _check_design(form, problem.design, table["model"])
    response = table[form.response].to_numpy(dtype=float)
    _check_response(form, response)
    family = sm.families.Binomial() if form.link == "logit" else _gaussian_log()
    model = sm.GEE(
        response,
        problem.design,
        groups=problem.groups,
        family=family,
        cov_struct=sm.cov_struct.Independence(),
        offset=problem.offset,
    )
    result = model.fit(cov_type="bias_reduced")
    if not (result.converged and np.isfinite(result.cov_params()).all()):
        raise _fit_error(form, "no convergence", "coefficients at which the scores vanish")
    predictor = problem.design @ result.params
    mean, _ = mean_and_slope(form.link, problem.offset + predictor)
    rows = table[[*CONFIGURATION, "rate_requests_per_s"]].assign(
        response=response, fitted=mean, predictor=predictor
    )
    freedom = int(problem.groups.max())
    return Regression(form, np.asarray(result.params), result.cov_params(), freedom, rows)


def coefficient_table(fit: Regression, confidence: float = CONFIDENCE) -> pd.DataFrame:
    """Coefficients with standard error, t interval and two-sided p against zero, one row a term."""
    std_error = np.sqrt(np.diag(fit.covariance))
    low, high = t_interval(fit.coefficients, std_error, fit.freedom, confidence)
    p_value = 2 * stats.t.sf(np.abs(fit.coefficients) / std_error, fit.freedom)
    return pd.DataFrame(
        {
            "form": fit.form.name,
            "term": ["intercept", *fit.form.terms],
            "estimate": fit.coefficients,
            "std_error": std_error,
            "low": low,
            "high": high,
            "p_value": p_value,
        }
    )


def predict_mean(
    fit: Regression, cells: pd.DataFrame, confidence: float = CONFIDENCE
) -> pd.DataFrame:
    """Mean response at cells with its interval: columns estimate, low, high, freedom; cells' index.

    link^-1(offset + x b -+ t sqrt(x V x')), t with as many degrees of freedom as models that ran
    the cell's GPU with at least as many cards, less one: what no second model has tried has no
    interval (NaN). The rule's reason is in `coverage.py`, which shows what models - 1 would miss.
    """
    design = design_matrix(fit.form, cells)
    predictor = design @ fit.coefficients
    std_error = np.sqrt(np.einsum("np,pq,nq->n", design, fit.covariance, design))
    freedom = informed_freedom(fit, cells)
    low, high = t_interval(predictor, std_error, freedom, confidence)
    offset = _offset(fit.form, cells)
    ends = [mean_and_slope(fit.form.link, offset + end)[0] for end in (predictor, low, high)]
    names = ("estimate", "low", "high")
    return pd.DataFrame(dict(zip(names, ends, strict=True)), index=cells.index).assign(
        freedom=freedom
    )


def informed_freedom(fit: Regression, cells: pd.DataFrame) -> Array:
    """Models that ran each cell's GPU with at least its number of cards, less one; at least 0."""
    most = fit.rows.groupby(["gpu", "model"])["gpu_count"].max()
    counts = [
        int((most.xs(gpu) >= count).sum()) if gpu in most.index.get_level_values(0) else 0
        for gpu, count in zip(cells["gpu"], cells["gpu_count"], strict=True)
    ]
    return np.asarray(np.maximum(np.array(counts, dtype=float) - 1, 0))


def influence(fit: Regression, table: pd.DataFrame) -> pd.DataFrame:
    """Coefficients without each model: one row a model left out, one column a term.

    `table` is what the fit was made from.
    """
    problem = pose(fit.form, table)
    names = table["model"].drop_duplicates().map(short_name)
    response = table[fit.form.response].to_numpy(dtype=float)
    left_out = cluster_estimates(problem, response, 1.0 - np.eye(len(names)))
    terms = ["intercept", *fit.form.terms]
    return pd.DataFrame(left_out, columns=terms).assign(left_out=names.to_numpy())[
        ["left_out", *terms]
    ]


def lack_of_fit(
    measured: Array, predicted: Array, *, n_parameters: int, noise_frac: float, noise_freedom: int
) -> tuple[float, float, float]:
    """Relative residual of a fit, its variance ratio F to replicate noise, and that ratio's p.

    F = (sum ((y - m)/y)^2 / (n - p)) / noise^2 against F(n - p, noise_freedom); `noise_frac` is the
    relative sd that repeating the runs behind one response would give.
    """
    freedom = measured.size - n_parameters
    variance = float(((1 - predicted / measured) ** 2).sum() / freedom)
    ratio = variance / noise_frac**2
    return float(np.sqrt(variance)), ratio, float(stats.f.sf(ratio, freedom, noise_freedom))


def _gaussian_log() -> object:
    return sm.families.Gaussian(sm.families.links.Log())


def _offset(form: Form, table: pd.DataFrame) -> Array:
    return np.zeros(len(table)) if form.offset is None else table[form.offset].to_numpy(dtype=float)


def _check_response(form: Form, response: Array) -> None:
    top = 1.0 if form.link == "logit" else np.inf
    if not (np.isfinite(response).all() and (response > 0).all() and (response <= top).all()):
        worst = response[~(np.isfinite(response) & (response > 0) & (response <= top))][0]
        raise _fit_error(form, f"{form.response} {worst:g}", f"values above 0, at most {top:g}")


def _check_design(form: Form, design: Array, models: pd.Series) -> None:
    if not np.isfinite(design).all():
        raise _fit_error(form, "a term without a value", "finite numbers in every term")
    if _rank(design) < design.shape[1]:
        raise _fit_error(form, "a singular design", f"runs that tell apart {', '.join(form.terms)}")
    for model in models.unique():
        kept = (models != model).to_numpy()
        if _rank(design[kept]) < design.shape[1]:
            reason = f"a design that is singular without {short_name(model)}"
            raise _fit_error(form, reason, "terms that more than one model determines")


def _rank(design: Array) -> int:
    lengths = np.linalg.norm(design, axis=0)
    if (lengths == 0).any():
        return int(np.count_nonzero(lengths))
    return int(np.linalg.matrix_rank(design / lengths, tol=RANK_TOLERANCE))


def _fit_error(form: Form, got: str, expected: str) -> InputError:
    return InputError(
        "no fit",
        got=got,
        expected=expected,
        where=f"the {form.name} model",
        do="add runs or drop a term",
    )
