"""What the recorded runs say of how they were made."""

import pytest

from hetinfer import recorded
from hetinfer.hardware import kv_capacity_tokens
from hetinfer.runs import load_recorded


@pytest.fixture(scope="module")
def runs():
    return load_recorded()


def test_all_sequences_ran_from_the_highest_rate_to_the_lowest(runs):
    order = recorded.run_order(runs)
    assert len(order) == 26
    assert set(order["order"]) == {"32, 16, 8, 4, 1"}


def test_no_run_is_shorter_than_its_replayed_arrivals(runs):
    drained = recorded.with_window(runs)
    assert drained["beyond_window_s"].min() > 0
    assert drained["window_s"].max() == pytest.approx(189.097, abs=5e-4)


def test_of_the_seeds_not_disproved_the_studys_leaves_least_unexplained(runs):
    shortest = {
        seed: recorded.with_window(runs, seed)["beyond_window_s"].min() for seed in range(40, 45)
    }
    possible = {
        seed: beyond_window_s for seed, beyond_window_s in shortest.items() if beyond_window_s > 0
    }
    assert len(possible) < len(shortest)
    assert min(possible, key=lambda seed: possible[seed]) == 42


def test_noise_comes_from_ten_pairs(runs):
    noise = recorded.noise_table(runs).set_index("metric")["noise_frac"]
    assert 0.002 < noise["throughput_requests_per_s"] < 0.004
    assert 0.02 < noise["ttft_p99_s"] < 0.04
    assert len(recorded.replicate_pairs(runs)) == 10 * len(recorded.NOISE_COLUMNS)


def test_kv_capacity_by_hand():
    # (0.9 * 80e9 - 14.77e9 * 2) / 196608
    assert kv_capacity_tokens("DeepSeek-R1-Distill-Qwen-14B", "h100-pcie", 1) == pytest.approx(
        (72e9 - 29.54e9) / 196608
    )
    assert kv_capacity_tokens("DeepSeek-R1-Distill-Qwen-14B", "rtx-4090", 1) == 0


def test_warm_caches_show_in_even_gaps_between_tokens(runs):
    summary = recorded.warm_cache_summary(recorded.warm_cache_table(runs))
    single = summary[~summary["many_4090"]].set_index("expected")
    assert single.loc["warm", "size"] == 52
    assert single.loc["warm", "max"] < 1.3
    assert single.loc["cold", "median"] > 3


def test_ttft_is_monotone_in_the_rate_nowhere_on_several_4090s(runs):
    table = recorded.ttft_by_rate(runs)
    assert len(table) == 7
    assert not table["monotone"].any()
