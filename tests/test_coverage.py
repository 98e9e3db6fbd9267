import numpy as np
import pytest

from hetinfer.coverage import (
    CLOSED,
    RECOMMENDED,
    RESAMPLED,
    coverage_table,
    draw_responses,
    interval_table,
    known_truth,
)
from hetinfer.runs import load_recorded
from hetinfer.scoring import mean_and_slope
from hetinfer.share import fit_fractional_logit, fit_mechanistic, rate_grid, share_pairs

GRID = rate_grid([1, 4], [4.0, 16.0])


@pytest.fixture(
    scope="module", params=[fit_fractional_logit, fit_mechanistic], ids=["logit", "log"]
)
def truth(request):
    pairs = share_pairs(load_recorded())
    return known_truth(request.param(pairs), pairs, GRID)


def test_drawn_responses_have_the_truths_mean(truth):
    drawn = draw_responses(truth, np.random.default_rng(1), 20_000)
    problem = truth.problem
    mean, _ = mean_and_slope(problem.link, problem.offset + problem.design @ truth.coefficients)
    assert np.allclose(mean, drawn.mean(axis=0), rtol=0.02)


def test_drawn_responses_repeat_with_their_seed(truth):
    first, again = (draw_responses(truth, np.random.default_rng(7), 3) for _ in range(2))
    assert (first == again).all()


def test_recommended_interval_keeps_faith_and_the_robust_normal_one_does_not(truth):
    groups = ["coefficients"] * len(truth.coefficients) + ["mean shares"] * len(GRID)
    table = coverage_table(truth, groups, n_datasets=400, n_resampled=10, seed=1)
    assert table["method"].unique().tolist() == [*CLOSED, RECOMMENDED, *RESAMPLED]
    mean = table.groupby("method")["coverage"].mean()
    assert mean[RECOMMENDED] > 0.92
    assert mean["robust, normal"] < 0.87


def test_every_method_brackets_each_coefficient():
    pairs = share_pairs(load_recorded())
    fit = fit_mechanistic(pairs)
    table = interval_table(fit, pairs, np.random.default_rng(1))
    for method in ("bias_reduced", "jackknife", "pairs"):
        assert (table[f"{method}_low"] < table["estimate"]).all()
        assert (table["estimate"] < table[f"{method}_high"]).all()
    assert ((table["wild_p"] > 0) & (table["wild_p"] <= 1)).all()
