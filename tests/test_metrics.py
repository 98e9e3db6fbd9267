import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetinfer import metrics
from hetinfer.errors import InputError
from hetinfer.runs import average_replicates, load_recorded

POSITIVE = st.floats(1e-6, 1e6)

# Each function, its arguments and the value worked out by hand.
BY_HAND = [
    (metrics.throughput_requests_per_s, (200, 50.0), 4.0),
    (metrics.throughput_tokens_per_s, (40_000, 45_000, 50.0), 1700.0),
    (metrics.cost_usd, (1800.0, 4, 0.25), 0.5),  # half an hour of four cards at 25 cents
    (metrics.cost_usd_per_mtoken, (1000.0, 1, 3.6), 1.0),  # 0.1 cent a second, 1000 tokens a second
    (metrics.cost_usd_per_mtoken, (1000.0, 4, 0.25), 1 / 3.6),
    (metrics.throughput_per_usd, (1000.0, 1, 3.6), 1e6),
    (metrics.energy_j_per_token, (700.0, 3500.0), 0.2),
    (metrics.mtoken_per_kwh, (700.0, 3500.0), 18.0),  # 3.6 MJ at 0.2 J each
    (metrics.carbon_g_per_mtoken, (700.0, 3500.0, 360.0), 20.0),
]


@pytest.mark.parametrize(("function", "arguments", "expected"), BY_HAND)
def test_of_numbers(function, arguments, expected):
    assert math.isclose(expected, function(*arguments))


@pytest.mark.parametrize(("function", "arguments", "expected"), BY_HAND)
def test_of_arrays(function, arguments, expected):
    result = function(*(np.array([value, value], dtype=float) for value in arguments))
    np.testing.assert_allclose([expected, expected], result)


@pytest.mark.parametrize(("function", "arguments", "expected"), BY_HAND)
def test_of_columns_keeps_their_rows(function, arguments, expected):
    result = function(*(pd.Series([value], index=["row"], dtype=float) for value in arguments))
    pd.testing.assert_series_equal(pd.Series([expected], index=["row"]), result)


def test_goodput_counts_requests_at_or_under_the_target():
    ttft_s = np.array([0.1, 2.0, 2.1, np.nan])
    assert 0.2 == metrics.goodput_requests_per_s(ttft_s, 10.0, ttft_target_s=2.0)


def test_goodput_needs_both_targets_met():
    ttft_s, tpot_s = np.array([0.1, 0.1, 3.0]), np.array([0.02, 0.06, 0.02])
    goodput = metrics.goodput_requests_per_s(
        ttft_s, 10.0, ttft_target_s=2.0, tpot_s=tpot_s, tpot_target_s=0.05
    )
    assert 0.1 == goodput


def test_goodput_leaves_its_arguments_alone():
    ttft_s, tpot_s = np.array([0.1]), np.array([0.02])
    metrics.goodput_requests_per_s(ttft_s, 1.0, ttft_target_s=2.0, tpot_s=tpot_s)
    assert (0.1, 0.02) == (ttft_s[0], tpot_s[0])


@pytest.mark.parametrize(("percent", "expected"), [(0, 1.0), (50, 2.5), (90, 3.7), (100, 4.0)])
def test_percentiles_are_linear_between_order_statistics(percent, expected):
    values_s = np.array([4.0, 1.0, 3.0, 2.0])
    assert math.isclose(expected, metrics.latency_percentile_s(values_s, percent))


def test_a_percentile_of_no_latencies_is_an_error():
    with pytest.raises(InputError, match="no latencies"):
        metrics.latency_percentile_s(np.empty(0), 99)


@given(POSITIVE, POSITIVE, POSITIVE, POSITIVE)
def test_cost_per_token_is_the_cost_of_the_run_over_its_tokens(tokens, duration_s, count, price):
    of_run = metrics.cost_usd(duration_s, count, price) / tokens * 1e6
    assert math.isclose(of_run, metrics.cost_usd_per_mtoken(tokens / duration_s, count, price))


@given(POSITIVE, POSITIVE, POSITIVE)
def test_tokens_per_usd_and_cost_per_token_are_inverse(rate, count, price):
    product = metrics.throughput_per_usd(rate, count, price)
    product *= metrics.cost_usd_per_mtoken(rate, count, price)
    assert math.isclose(1e6, product)


@given(POSITIVE, POSITIVE)
def test_energy_per_token_and_tokens_per_kwh_are_inverse(power_w, rate):
    product = metrics.energy_j_per_token(power_w, rate) * metrics.mtoken_per_kwh(power_w, rate)
    assert math.isclose(3.6, product)  # million joules in a kilowatt-hour


# Frames


def some_runs():
    """One model at 1 and 4 requests per s on one H100 and on two 4090s."""
    return pd.DataFrame(
        {
            "model": "org/m",
            "gpu": ["h100-pcie", "h100-pcie", "rtx-4090", "rtx-4090"],
            "gpu_count": [1, 1, 2, 2],
            "dataset": "sharegpt",
            "prompts": 200,
            "rate_requests_per_s": [1.0, 4.0, 1.0, 4.0],
            "duration_s": [3600.0, 1800.0, 3600.0, 1800.0],
            "throughput_requests_per_s": [1.0, 4.0, 1.0, 2.0],
            "goodput_requests_per_s": [1.0, 4.0, 0.5, 0.0],
            "throughput_tokens_per_s": [1000.0, 4000.0, 900.0, 2000.0],
            "output_throughput_tokens_per_s": [500.0, 2000.0, 450.0, 1000.0],
            "ttft_p99_s": [0.1, 0.4, 0.9, 3.0],
        }
    )


PRICES = {"h100-pcie": 3.6, "rtx-4090": 0.9}


def test_the_price_of_each_run_is_that_of_its_gpu():
    assert [3.6, 3.6, 0.9, 0.9] == metrics.price_of(some_runs(), PRICES).tolist()


def test_a_gpu_without_a_price_is_named():
    with pytest.raises(InputError, match="none for rtx-4090"):
        metrics.price_of(some_runs(), {"h100-pcie": 2.0})


def test_costs_of_runs_by_hand():
    costs = metrics.with_costs(some_runs(), PRICES)
    assert [3.6, 3.6, 1.8, 1.8] == costs["price_usd_per_h"].tolist()
    assert [3.6, 1.8, 1.8, 0.9] == costs["cost_usd"].tolist()
    np.testing.assert_allclose([1.0, 0.25, 5 / 9, 0.25], costs["cost_usd_per_mtoken"])
    np.testing.assert_allclose([2.0, 0.5, 10 / 9, 0.5], costs["cost_usd_per_output_mtoken"])
    np.testing.assert_allclose([1.0, 0.25, 10 / 9, np.inf], costs["cost_usd_per_good_mtoken"])
    np.testing.assert_allclose([1e6, 4e6, 1.8e6, 4e6], costs["tokens_per_usd"])


def test_shares_pair_the_same_model_and_rate():
    shares = metrics.share_table(some_runs())
    assert [0.9, 0.5] == shares["share"].tolist()
    assert [1000.0, 4000.0] == shares["baseline_tokens_per_s"].tolist()


@pytest.mark.parametrize("other", [{"dataset": "sonnet"}, {"prompts": 1000}])
def test_shares_pair_only_as_many_prompts_of_the_same_data_set(other):
    runs = some_runs()
    h100s = runs.assign(**other, throughput_tokens_per_s=9000.0).query("gpu == 'h100-pcie'")
    assert [0.9, 0.5] == metrics.share_table(pd.concat([runs, h100s]))["share"].tolist()
    with pytest.raises(InputError, match="no pair of runs"):
        metrics.share_table(pd.concat([runs.query("gpu == 'rtx-4090'"), h100s]))


def test_a_rate_without_a_baseline_has_no_share():
    assert [4.0] == metrics.share_table(some_runs().drop(0))["rate_requests_per_s"].tolist()


def test_no_pair_at_all_is_an_error():
    with pytest.raises(InputError, match="no pair of runs"):
        metrics.share_table(some_runs().query("gpu == 'rtx-4090'"))


def test_replicates_of_a_baseline_must_be_averaged_first():
    runs = some_runs()
    with pytest.raises(InputError, match="average_replicates"):
        metrics.share_table(pd.concat([runs, runs.head(1)]))


def test_the_study_has_a_share_for_every_4090_cell_with_a_partner():
    cells = average_replicates(load_recorded())
    pairs = cells.merge(
        cells.query("gpu == 'h100-pcie' and gpu_count == 1"), on=["model", "rate_requests_per_s"]
    )
    expected = (pairs["gpu_x"] == "rtx-4090").sum()
    assert expected == len(metrics.share_table(cells))


def test_rates_within_a_target_need_not_be_a_range():
    runs = some_runs().assign(ttft_p99_s=[0.9, 0.4, 0.9, 3.0])
    within = metrics.rates_within(runs, [0.5, 1.0])
    assert ["4", ""] == within["within_500_ms"].tolist()
    assert ["1, 4", "1"] == within["within_1000_ms"].tolist()
