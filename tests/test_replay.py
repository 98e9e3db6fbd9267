import math

import numpy as np
import pytest

from hetinfer.errors import InputError
from hetinfer.runs import load_recorded, percentiles_s
from hetinfer.simulation.engine import Engine, inter_token_s, simulate_engine
from hetinfer.simulation.replay import (
    STATISTICS,
    STUDY_RATES,
    recorded_statistics,
    replay_statistics,
    statistics_frame,
    study_replay,
    with_lengths,
)
from hetinfer.simulation.step_time import StepTime
from hetinfer.workload import Lengths, arrival_window_s

RNG = np.random.default_rng(42)
LENGTHS = Lengths(RNG.integers(4, 400, 200), RNG.integers(2, 400, 200))
STEP = StepTime(launch_s=0.003, weights_s=0.015, compute_s=8e-5, sequence_s=2e-5)
ENGINE = Engine(200_000, 1024, 8192, STEP)


def test_each_run_sends_a_test_request_and_then_the_study_s_arrivals():
    replay = study_replay(LENGTHS, (32.0, 1.0))
    assert replay.first == (1, 202)
    gaps_s = np.diff(replay.requests.arrival_s[202:402])
    assert gaps_s.sum() == pytest.approx(187.583733 + 199 * 1.05e-3)
    assert replay.requests.prompt_id[[0, 1, 201, 202]].tolist() == [0, 0, 0, 0]


def test_a_run_lasts_at_least_as_long_as_its_client_sends():
    quick = Engine(200_000, 1024, 8192, StepTime(1e-6, 0.0, 0.0))
    duration_s = replay_statistics(quick, study_replay(LENGTHS, (4.0,)))[0, 0]
    assert duration_s == pytest.approx(arrival_window_s(200, 4.0) + 200 * 1.05e-3)


def test_statistics_are_those_of_the_recorded_runs():
    replay = study_replay(LENGTHS, (8.0,))
    found = dict(
        zip(STATISTICS, replay_statistics(ENGINE, replay, inter_token=True)[0], strict=True)
    )
    simulated = simulate_engine(replay.requests, ENGINE, token_times=True)
    ttft, tpot = percentiles_s(simulated.ttft_s[1:]), percentiles_s(simulated.tpot_s[1:])
    for name in ("mean_s", "p50_s", "p90_s", "p99_s"):
        assert found[f"ttft_{name}"] == pytest.approx(getattr(ttft, name))
        assert found[f"tpot_{name}"] == pytest.approx(getattr(tpot, name))
    gaps = int(replay.requests.output_tokens[0]) - 1
    itl = percentiles_s(inter_token_s(simulated)[gaps:])
    for name in ("mean_s", "p50_s", "p90_s", "p99_s", "p100_s"):
        assert found[f"itl_{name}"] == pytest.approx(getattr(itl, name))


def test_inter_token_percentiles_are_left_out_unless_asked_for():
    statistics = replay_statistics(ENGINE, study_replay(LENGTHS, (8.0,)))
    assert np.isnan(statistics[0, STATISTICS.index("itl_p50_s")])
    assert np.isfinite(statistics[0, STATISTICS.index("itl_mean_s")])


def test_later_runs_find_their_prompts_in_the_cache():
    replay = study_replay(LENGTHS, (32.0, 32.0))
    cached = simulate_engine(replay.requests, ENGINE).cached_tokens
    assert cached[2:201].sum() == 0
    prompts = replay.requests.prompt_tokens[202:]
    assert (cached[202:] == (prompts - 1) // 16 * 16).all()


def test_other_lengths_keep_the_arrivals():
    replay = study_replay(LENGTHS, (4.0,))
    doubled = with_lengths(replay, Lengths(2 * LENGTHS.prompt_tokens, LENGTHS.output_tokens))
    assert np.array_equal(doubled.requests.arrival_s, replay.requests.arrival_s)
    assert np.array_equal(doubled.requests.prompt_tokens, 2 * replay.requests.prompt_tokens)


def test_a_frame_of_statistics_has_the_columns_of_runs():
    table = statistics_frame(replay_statistics(ENGINE, study_replay(LENGTHS)), STUDY_RATES)
    assert set(table.columns) <= set(load_recorded().columns)
    assert table["throughput_requests_per_s"].tolist() == (200 / table["duration_s"]).tolist()


def test_recorded_statistics_average_replicates():
    runs = load_recorded()
    own = runs[(runs["model"].str.contains("Qwen-14B")) & (runs["gpu"] == "h100-pcie")]
    found = recorded_statistics(own, (16.0,))[0, 0]
    both = own.loc[own["rate_requests_per_s"] == 16.0, "duration_s"]
    assert len(both) == 2
    assert math.isclose(found, both.mean())


def test_runs_of_two_configurations_or_without_a_rate_are_errors():
    runs = load_recorded()
    with pytest.raises(InputError, match="24 configurations"):
        recorded_statistics(runs, (16.0,))
    own = runs[(runs["model"].str.contains("phi-4")) & (runs["rate_requests_per_s"] < 16)]
    with pytest.raises(InputError, match="no run at 16"):
        recorded_statistics(own, (16.0,))


def test_lengths_of_other_runs_are_an_error():
    with pytest.raises(InputError, match="lengths of another run"):
        study_replay(Lengths(np.array([1]), np.array([1])))
