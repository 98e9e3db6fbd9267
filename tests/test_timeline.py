import json

import numpy as np
import pandas as pd
import pytest

from hetinfer.errors import InputError
from hetinfer.measurement.client import schedule_s
from hetinfer.measurement.timeline import (
    batch_means,
    goodput_by_target,
    load_power,
    load_timeline,
    over_time,
    steady_part,
)

RATE, SEED, COUNT, BEGAN_S = 2.0, 42, 5, 1000.0


def write_run(folder, late_s=0.0, own=True):
    """A run's file as a campaign leaves it: five requests, the last one late."""
    starts_s = BEGAN_S + schedule_s(COUNT, RATE, SEED)
    starts_s[-1] += late_s
    told = {
        "date": "20261130-120000",
        "model_id": "dummy/llama-64x1",
        "num_prompts": COUNT,
        "request_rate": RATE,
        "burstiness": 1.0,
        "duration": 3.0,
        "completed": COUNT,
        "failed": 0,
        "total_input_tokens": 10 * COUNT,
        "total_output_tokens": 3 * COUNT,
        "input_lens": [10] * COUNT,
        "output_lens": [3] * COUNT,
        "ttfts": [0.1] * COUNT,
        "itls": [[0.02, 0.02]] * COUNT,
        "start_times": starts_s.tolist(),
        "errors": [""] * COUNT,
    }
    path = folder / "run.json"
    path.write_text(json.dumps(told | ({"measurement": {"seed": SEED}} if own else {})))
    return path


def test_requests_are_set_against_their_schedule(tmp_path):
    timeline = load_timeline(write_run(tmp_path, late_s=0.3))
    np.testing.assert_allclose(timeline["intended_s"], schedule_s(COUNT, RATE, SEED))
    np.testing.assert_allclose(timeline["lag_s"], [0, 0, 0, 0, 0.3], atol=1e-9)
    np.testing.assert_allclose(
        timeline["ttft_from_intended_s"], [0.1, 0.1, 0.1, 0.1, 0.4], atol=1e-9
    )


def test_a_file_that_no_campaign_made_is_refused(tmp_path):
    with pytest.raises(InputError, match="not measured here"):
        load_timeline(write_run(tmp_path, own=False))


def test_power_is_set_on_the_runs_clock_and_empty_without_samples(tmp_path):
    path = write_run(tmp_path)
    assert load_power(path).empty
    (tmp_path / "run.power.csv").write_text("time_s,device,power_w\n1001.5,gpu0,300\n")
    assert pytest.approx([1.5]) == load_power(path)["time_s"].tolist()


def frame(intended_s, ttft_s=0.1, tpot_s=0.02):
    return pd.DataFrame(
        {
            "intended_s": intended_s,
            "start_s": intended_s,
            "ttft_s": ttft_s,
            "tpot_s": tpot_s,
            "e2el_s": 0.5,
            "output_tokens": 10,
        }
    )


def test_over_time_counts_tokens_where_requests_end():
    steps = over_time(frame([0.0, 0.2, 2.4]), 1.0)
    assert steps["time_s"].tolist() == [0.5, 1.5, 2.5]
    np.testing.assert_allclose(steps["throughput_tokens_per_s"].to_numpy(), [20.0, np.nan, 10.0])
    np.testing.assert_allclose(steps["ttft_s"].to_numpy(), [0.1, np.nan, 0.1])


def test_warm_up_and_drain_are_cut_off():
    steady = steady_part(frame(np.arange(10.0)), 3.0, 2.0)
    assert steady["intended_s"].tolist() == [3.0, 4.0, 5.0, 6.0, 7.0]
    with pytest.raises(InputError, match="no steady state"):
        steady_part(frame(np.arange(10.0)), 8.0, 8.0)


def test_batch_means_of_a_constant_have_no_width_and_short_series_are_refused():
    found = batch_means(np.full(45, 3.0))
    assert (found.low, found.mean, found.high) == (3.0, 3.0, 3.0)
    with pytest.raises(InputError, match="too few values"):
        batch_means(np.ones(39))


def test_batch_means_leave_the_remainder_out_at_the_start():
    values = np.concatenate([[1000.0], np.tile([1.0, 3.0], 20)])
    assert batch_means(values).mean == 2.0


def test_batch_means_cover_the_mean_of_a_correlated_series_about_as_often_as_they_say():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        noise = rng.normal(size=2000)
        series = np.convolve(noise, 0.8 ** np.arange(30), mode="same")
        found = batch_means(series)
        covered += found.low <= 0.0 <= found.high
    assert 178 <= covered <= 200


def test_goodput_counts_requests_within_their_targets_over_the_time_of_arrivals():
    timeline = frame(np.arange(4.0), ttft_s=[0.1, 0.3, 0.3, np.nan], tpot_s=[0.02, 0.02, 0.2, 0.02])
    table = goodput_by_target(timeline, [0.2, 1.0], [0.1])
    assert table["goodput_requests_per_s"].tolist() == [0.25, 0.25, 0.75, 0.5]
    assert table["good_frac"].tolist() == [0.25, 0.25, 0.75, 0.5]
    assert table["tpot_target_s"].tolist() == [np.inf, 0.1, np.inf, 0.1]
