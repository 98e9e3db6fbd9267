import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hetinfer.errors import InputError
from hetinfer.intervals import (
    band_limit,
    cluster_jackknife,
    mean_interval,
    pairs_bootstrap,
    percentile_interval,
    quantile_interval,
    replicate_noise,
    score_wild_p_value,
    simulate_coverage,
    t_interval,
    webb_weights,
)
from hetinfer.runs import load_recorded


def test_replicate_noise_of_pairs_is_rms_log_ratio_over_root_two():
    runs = load_recorded().head(2)
    pair = runs.assign(
        model="m", rate_requests_per_s=1.0, replicate=[1, 2], duration_s=[1.0, math.exp(0.02)]
    )
    assert math.isclose(0.02 / math.sqrt(2), replicate_noise(pair, "duration_s"))


def test_study_repeats_its_throughput_within_half_a_per_cent():
    assert 0.002 < replicate_noise(load_recorded(), "throughput_tokens_per_s") < 0.005


def test_study_repeats_its_tpot_within_one_per_cent():
    assert 0.005 < replicate_noise(load_recorded(), "tpot_mean_s") < 0.01


def test_noise_without_replicates_is_an_error():
    with pytest.raises(InputError, match="no replicates"):
        replicate_noise(load_recorded().query("replicate == 3"), "duration_s")


def test_noise_of_a_zero_is_an_error():
    runs = load_recorded()
    with pytest.raises(InputError, match="above 0"):
        replicate_noise(runs.assign(duration_s=np.zeros(len(runs))), "duration_s")


def test_noise_of_an_unknown_column_is_an_error():
    with pytest.raises(InputError, match="unknown column"):
        replicate_noise(load_recorded(), "speed")


def mean_of(values):
    """Weighted mean as an estimator: one weight a cluster, one cluster a value."""
    return lambda weights: (weights @ values / weights.sum(axis=1))[:, None]


def test_jackknife_of_a_mean_is_its_standard_error():
    values = np.array([1.0, 2.0, 4.0, 9.0])
    jackknife = cluster_jackknife(mean_of(values), 4)
    assert math.isclose(values.std(ddof=1) / 2, math.sqrt(jackknife.covariance[0, 0]))
    assert jackknife.freedom == 3


def test_jackknife_refuses_two_clusters():
    with pytest.raises(InputError, match="too few models"):
        cluster_jackknife(mean_of(np.array([1.0, 2.0])), 2)


def test_jackknife_refuses_an_estimate_that_hangs_on_one_cluster():
    def needs_the_first(weights):
        return np.where(weights[:, :1] > 0, 1.0, np.nan)

    with pytest.raises(InputError, match="hangs on one cluster"):
        cluster_jackknife(needs_the_first, 3)


def test_t_interval_of_four_degrees_of_freedom():
    low, high = t_interval(np.array([0.0]), np.array([1.0]), 4)
    assert np.allclose([-2.776445105, 2.776445105], [low[0], high[0]])


def test_no_degree_of_freedom_gives_no_interval():
    assert np.isnan(t_interval(np.array([0.0]), np.array([1.0]), 0)).all()


def test_mean_interval_by_hand():
    mean, low, high = mean_interval(np.array([1.0, 2.0, 3.0]))
    half = 4.302652730 / math.sqrt(3)
    assert np.allclose([2.0, 2.0 - half, 2.0 + half], [mean, low, high])


def test_mean_of_one_value_has_no_interval():
    assert mean_interval(np.array([7.0]))[0] == 7.0
    assert np.isnan(mean_interval(np.array([7.0]))[1:]).all()


def test_bootstrap_repeats_with_its_seed_and_brackets_the_mean():
    values = np.array([1.0, 2.0, 4.0, 9.0, 3.0])
    draws = pairs_bootstrap(mean_of(values), 5, rng=np.random.default_rng(1))
    again = pairs_bootstrap(mean_of(values), 5, rng=np.random.default_rng(1))
    low, high = percentile_interval(draws)
    assert (draws == again).all()
    assert low[0] < values.mean() < high[0]


def test_bootstrap_without_usable_draws_is_an_error():
    def all_clusters_needed(weights):
        return np.where((weights > 0).all(axis=1, keepdims=True), 1.0, np.nan)

    with pytest.raises(InputError, match="usable draws"):
        pairs_bootstrap(all_clusters_needed, 5, rng=np.random.default_rng(1))


def test_webb_weights_of_five_clusters_are_all_patterns_with_mean_zero_and_variance_one():
    weights = webb_weights(5)
    assert weights.shape == (7776, 5)
    assert np.allclose(weights.mean(axis=0), 0)
    assert np.allclose(weights.var(axis=0), 1)


def test_many_clusters_need_a_generator_for_their_weights():
    with pytest.raises(InputError, match="no random generator"):
        webb_weights(12)
    assert webb_weights(12, np.random.default_rng(1)).shape == (50_000, 12)


def test_wild_p_value_counts_patterns_at_least_as_extreme():
    contributions = np.array([1.0, 1.0])
    weights = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0], [-1.0, 1.0]])
    assert score_wild_p_value(contributions, weights) == 0.5


def test_scores_that_cancel_have_p_one():
    assert score_wild_p_value(np.array([1.0, -1.0, 0.5, -0.5]), webb_weights(4)) == 1.0


def test_median_of_nine_lies_between_second_and_eighth_value():
    assert quantile_interval(np.arange(1.0, 10.0), 0.5) == (5.0, 2.0, 8.0)


@given(st.integers(30, 200), st.floats(0.1, 0.9))
def test_quantile_interval_covers_as_often_as_it_says(n, quantile):
    try:
        _, low, high = quantile_interval(np.arange(1.0, n + 1), quantile)
    except InputError:
        return
    ranks = stats.binom(n, quantile)
    assert ranks.cdf(high - 1) - ranks.cdf(low - 1) >= 0.95


def test_p99_of_two_hundred_requests_has_no_upper_bound():
    with pytest.raises(InputError, match=r"interval of the 0\.99 quantile"):
        quantile_interval(np.arange(200.0), 0.99)


def test_five_models_bound_a_band_at_five_sixths_and_nineteen_at_ninety_five_per_cent():
    assert band_limit(5) == 5 / 6
    assert band_limit(19) == 0.95


def test_largest_of_five_errors_covers_a_sixth_as_often_as_the_limit_says():
    errors = np.random.default_rng(1).exponential(size=(20_000, 6))
    covered = errors[:, 5] <= errors[:, :5].max(axis=1)
    assert math.isclose(band_limit(5), covered.mean(), abs_tol=0.01)


def covers_the_mean(rng, n):
    draws = rng.normal(size=(n, 4))
    half = 3.182446305 * draws.std(axis=1, ddof=1) / 2
    return np.abs(draws.mean(axis=1)) <= half


def test_simulated_coverage_of_students_interval_is_nominal():
    assert math.isclose(0.95, simulate_coverage(covers_the_mean, 4000, seed=1), abs_tol=0.012)


def test_simulated_coverage_does_not_depend_on_jobs():
    alone = simulate_coverage(covers_the_mean, 130, seed=1)
    assert simulate_coverage(covers_the_mean, 130, seed=1, n_jobs=2) == alone


def test_no_data_set_is_an_error():
    with pytest.raises(InputError, match="no data sets"):
        simulate_coverage(covers_the_mean, 0, seed=1)
