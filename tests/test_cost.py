import math

import numpy as np
import pytest

from hetinfer.cost import (
    DRAIN,
    break_even_prices,
    cost_cell,
    cost_cells,
    cost_of_drain,
    describe_cost_ratios,
    drain_steps,
    duration_predictor,
    fit_drain,
    frontier_costs,
    interpolated_cost,
    is_on_frontier,
    predict_cost,
    price_list,
    rank_by_scenario,
    with_cost_ratio,
    with_drain_covariates,
)
from hetinfer.errors import InputError
from hetinfer.hardware import load_prices
from hetinfer.metrics import with_costs
from hetinfer.regression import pose
from hetinfer.runs import average_replicates, load_recorded
from hetinfer.scoring import solve_scores
from hetinfer.share import share_pairs
from hetinfer.validation import mean_absolute_errors, validation_errors

QWEN_14B = "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B"
PRICES = {"h100-pcie": 2.0, "rtx-4090": 0.25}


@pytest.fixture(scope="module")
def cells():
    return cost_cells(load_recorded())


@pytest.fixture(scope="module")
def pairs():
    return share_pairs(load_recorded())


def test_cost_of_the_measured_drain_is_the_measured_cost(cells):
    measured = with_costs(average_replicates(load_recorded()), PRICES)["cost_usd_per_mtoken"]
    from_drain = cost_of_drain(cells, cells["drain_s"], PRICES)
    assert np.allclose(measured, from_drain, rtol=5e-3)


def test_cost_by_hand(cells):
    cell = cells.head(1).assign(last_arrival_s=90.0, tokens=50_000.0, gpu="h100-pcie", gpu_count=2)
    cost = cost_of_drain(cell, cell["last_arrival_s"] * 0 + 10.0, PRICES).iloc[0]
    assert math.isclose(2.0 * 2 * 100 / 3600 / 50_000 * 1e6, cost)


def test_drain_coefficients_agree_with_an_independent_solve(cells):
    solved = solve_scores(pose(DRAIN, cells), cells["drain_s"].to_numpy(), np.ones(len(cells)))
    assert np.allclose(solved, fit_drain(cells).coefficients, rtol=1e-6)


def test_doubled_prices_double_every_prediction_without_a_fit(cells):
    fit = fit_drain(cells)
    once = predict_cost(fit, cells, PRICES)
    twice = predict_cost(fit, cells, {gpu: 2 * price for gpu, price in PRICES.items()})
    names = ["estimate", "low", "high"]
    assert np.allclose(2 * once[names], twice[names], equal_nan=True)


def test_drain_model_stays_within_its_promise(cells, pairs):
    form = {"drain": duration_predictor(DRAIN)}
    both = cells[cells["model"].isin(pairs["model"])]
    of_pairs = mean_absolute_errors(validation_errors(both, "duration_s", form))
    of_all = mean_absolute_errors(validation_errors(cells, "duration_s", form))
    assert of_pairs["model_error_frac"].iloc[0] <= 0.09
    assert of_all["model_error_frac"].iloc[0] <= 0.12


def test_cost_ratio_is_the_price_ratio_over_the_share(pairs):
    row = with_cost_ratio(pairs, PRICES).query("gpu_count == 4").iloc[0]
    assert math.isclose(0.5 / row["share"], row["cost_ratio"])


def test_mean_cost_ratios_scale_with_the_price_ratio(pairs):
    study = describe_cost_ratios(pairs, PRICES)
    dearer = describe_cost_ratios(pairs, {**PRICES, "rtx-4090": 0.5})
    assert np.allclose(2 * study["cost_ratio"], dearer["cost_ratio"])
    assert study["price_ratio"].unique().tolist() == [0.125]


def test_interpolated_cost_at_a_measured_rate_is_the_measured_one(cells):
    cell = cost_cell(cells, QWEN_14B, gpu="rtx-4090", gpu_count=2, rate_requests_per_s=8.0)
    row = cells.query("model == @QWEN_14B and gpu_count == 2 and rate_requests_per_s == 8")
    expected = cost_of_drain(row, row["drain_s"], PRICES).iloc[0]
    assert math.isclose(expected, interpolated_cost(cells, cell, PRICES), rel_tol=5e-3)


def test_configuration_that_never_ran_has_no_interpolated_cost(cells):
    cell = cost_cell(cells, QWEN_14B, gpu="rtx-4090", gpu_count=3, rate_requests_per_s=8.0)
    assert interpolated_cost(cells, cell, PRICES) is None


def test_cost_cell_of_an_unknown_model_is_an_error(cells):
    with pytest.raises(InputError, match="no runs of this model"):
        cost_cell(cells, "x/y", gpu="rtx-4090", gpu_count=2, rate_requests_per_s=8.0)


def test_gpu_that_never_ran_has_no_term(cells):
    with pytest.raises(InputError, match="GPU without runs: got a100-sxm"):
        with_drain_covariates(cells.assign(gpu="a100-sxm"))


def test_frontier_drops_what_another_row_beats(cells):
    costs = cells.head(3).assign(cost=[1.0, 2.0, 2.0], ttft=[2.0, 1.0, 2.0], speed=[1.0, 1.0, 1.0])
    assert is_on_frontier(costs, lower=["cost", "ttft"], higher=["speed"]).tolist() == [
        True,
        True,
        False,
    ]


def test_equal_rows_both_stay_on_the_frontier(cells):
    costs = cells.head(2).assign(cost=1.0)
    assert is_on_frontier(costs, lower=["cost"], higher=[]).all()


def test_at_the_break_even_price_both_cost_the_same(cells, pairs):
    flip = break_even_prices(pairs, cells, [math.inf]).query("gpu_count == 4").iloc[0]
    prices = {"h100-pcie": 2.0, "rtx-4090": 2.0 * flip["break_even"]}
    ratios = with_cost_ratio(pairs, prices)
    same = (ratios["model"] == flip["model"]) & (ratios["gpu_count"] == 4)
    at = ratios[same & (ratios["rate_requests_per_s"] == flip["rate_requests_per_s"])]
    assert math.isclose(1, at["cost_ratio"].iloc[0])


def test_an_infinite_target_is_met_by_all_and_zero_by_none(cells, pairs):
    flips = break_even_prices(pairs, cells, [math.inf, 0.0])
    met = flips.groupby("ttft_target_s")[["meets_4090", "meets_h100"]].mean()
    assert (met.loc[math.inf] == 1).all()
    assert (met.loc[0.0] == 0).all()


def test_price_on_the_command_line_replaces_the_scenarios():
    prices = price_list("study-2025", ["RTX_4090=0.5", "h100-pcie=3"])
    assert prices == {**load_prices(), "rtx-4090": 0.5, "h100-pcie": 3.0}


@pytest.mark.parametrize(
    ("word", "what"),
    [
        ("rtx-4090", "price not understood"),
        ("rtx-4090=cheap", "price not understood"),
        ("rtx-4090=0", "price not positive"),
        ("rtx-4090=nan", "price not positive"),
        ("banana=1", "unknown GPU"),
    ],
)
def test_price_that_cannot_be_used_is_an_error(word, what):
    with pytest.raises(InputError, match=what):
        price_list("study-2025", [word])


def test_ranking_counts_pairs_that_are_cheaper_and_in_time(cells, pairs):
    flips = break_even_prices(pairs, cells, [math.inf, 0.0])
    ranked = rank_by_scenario(flips, {"free": 0.0, "dear": 10.0})
    total = ranked.groupby(["scenario", "ttft_target_s"])[["cheaper", "chosen", "n_pairs"]].sum()
    assert total.loc[("free", math.inf)].tolist() == [55, 55, 55]
    assert total.loc[("free", 0.0)].tolist() == [55, 0, 55]
    assert total.loc[("dear", math.inf)].tolist() == [0, 0, 55]


def test_drain_steps_of_a_known_drain(cells):
    known = cells.assign(drain_s=300 * cells["tpot_mean_s"])
    assert math.isclose(300, drain_steps(known))


def test_cheapest_configuration_is_always_on_the_frontier(cells):
    costs = frontier_costs(cells, PRICES)
    cheapest = costs.groupby(["model", "rate_requests_per_s"])["cost_usd_per_mtoken"].idxmin()
    assert costs.loc[cheapest, "on_frontier"].all()
