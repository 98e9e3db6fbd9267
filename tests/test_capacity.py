import dataclasses
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest

from hetinfer.errors import InputError
from hetinfer.simulation.capacity import (
    Load,
    backlogged_throughput,
    capacity_requests_per_s,
    draw_requests,
    healthy_host,
    latency_curve,
    simulate_load,
)
from hetinfer.simulation.engine import Engine, FrontEnd
from hetinfer.simulation.step_time import StepTime
from hetinfer.simulation.sweep import sweep
from hetinfer.workload import Lengths

LENGTHS = Lengths(np.array([64, 128, 256, 512]), np.array([16, 64, 32, 128]))
STEP = StepTime(launch_s=0.003, weights_s=0.010, compute_s=5e-5, sequence_s=2e-5)
ENGINE = Engine(60_000, 256, 2048, STEP)
LOAD = Load(LENGTHS, requests=1500)


def single_server(service_s: float) -> tuple[Engine, Load]:
    """Every request is one step of `service_s`, one at a time: an M/D/1 queue."""
    engine = Engine(64, 1, 64, StepTime(service_s, 0.0, 0.0), prefix_caching=False)
    return engine, Load(Lengths(np.array([8]), np.array([1])), requests=20_000)


def test_throughput_of_a_stable_run_is_the_offered_rate():
    point = simulate_load(ENGINE, LOAD, 8.0)
    assert not point.overloaded
    assert point.throughput_requests_per_s == pytest.approx(8.0, rel=0.1)
    mean_tokens = LENGTHS.output_tokens.mean()
    assert point.output_throughput_tokens_per_s == pytest.approx(8.0 * mean_tokens, rel=0.15)


def test_rate_above_capacity_finishes_and_is_flagged():
    point = simulate_load(ENGINE, LOAD, 1000.0)
    assert point.overloaded
    assert point.throughput_requests_per_s < 1000.0
    longer = simulate_load(ENGINE, dataclasses.replace(LOAD, requests=3000), 1000.0)
    assert longer.ttft_p99_s > 1.5 * point.ttft_p99_s


def test_single_server_saturates_at_the_inverse_of_its_service():
    engine, load = single_server(0.02)
    assert backlogged_throughput(engine, load) == pytest.approx(50.0, rel=1e-6)


def test_median_of_a_single_server_is_that_of_m_d_1():
    """Below one service d, P(wait <= t) = (1 - load) exp(load t/d): at load 0.6, 0.5 at 0.372 d."""
    engine, load = single_server(0.02)
    point = simulate_load(engine, load, 30.0)
    wait_s = 0.02 * np.log(0.5 / 0.4) / 0.6
    assert point.ttft_p50_s == pytest.approx(0.02 + wait_s, rel=0.03)
    assert np.isnan(point.tpot_p50_s)  # one token has no time per further token


def test_capacity_is_interpolated_in_the_logarithm_of_the_latency():
    curve = pd.DataFrame(
        {
            "rate_requests_per_s": [1.0, 2.0, 4.0],
            "ttft_p99_s": [0.01, 0.1, 10.0],
            "tpot_p99_s": [0.02, 0.02, 0.02],
            "overloaded": [False, False, False],
        }
    )
    assert capacity_requests_per_s(curve, ttft_p99_s=1.0) == pytest.approx(3.0)
    assert capacity_requests_per_s(curve, ttft_p99_s=0.005) == 0.0
    assert capacity_requests_per_s(curve, ttft_p99_s=20.0) == 4.0
    assert capacity_requests_per_s(curve, ttft_p99_s=20.0, tpot_p99_s=0.01) == 0.0
    overloaded = curve.assign(overloaded=[False, False, True])
    assert capacity_requests_per_s(overloaded, ttft_p99_s=20.0) == 2.0


def test_capacity_grows_with_the_target_and_with_a_warm_cache():
    cold = latency_curve(ENGINE, LOAD)
    warm = latency_curve(ENGINE, dataclasses.replace(LOAD, repeated=True))
    targets_s = (0.05, 0.1, 0.5, 2.0)
    in_cold = [capacity_requests_per_s(cold, ttft_p99_s=target_s) for target_s in targets_s]
    in_warm = [capacity_requests_per_s(warm, ttft_p99_s=target_s) for target_s in targets_s]
    assert in_cold == sorted(in_cold)
    assert in_warm[1] > in_cold[1] > 0
    assert cold["overloaded"].tolist() == [False] * (len(cold) - 1) + [True]


def test_repeated_texts_are_those_that_lengths_are_drawn_from():
    repeated = draw_requests(dataclasses.replace(LOAD, repeated=True), 5.0)
    assert set(repeated.prompt_id) == {0, 1, 2, 3}
    assert (repeated.prompt_tokens == LENGTHS.prompt_tokens[repeated.prompt_id]).all()
    assert len(set(draw_requests(LOAD, 5.0).prompt_id)) == 1500


def test_a_healthy_host_only_changes_the_front_end():
    ill = dataclasses.replace(ENGINE, front_end=FrontEnd(step_s=0.1, stall_s=1.0, stall_frac=0.5))
    healthy = healthy_host(ill)
    assert healthy.front_end.stall_frac == 0.0
    assert dataclasses.replace(healthy, front_end=ill.front_end) == ill


@pytest.mark.parametrize("backend", ["sequential", "loky"])
def test_a_sweep_gives_the_same_numbers_wherever_it_runs(backend):
    found = sweep(rate_point, [4.0, 8.0, 6.0], jobs=2, backend=backend)
    assert found == [rate_point(rate) for rate in (4.0, 8.0, 6.0)]


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_a_sweep_on_ray_without_ray_says_what_to_install():
    with pytest.raises(InputError, match="run make cluster"):
        sweep(rate_point, [1.0], backend="ray")


def rate_point(rate: float) -> float:
    return simulate_load(ENGINE, Load(LENGTHS, requests=500), rate).ttft_p99_s


def test_unusable_sweeps_loads_and_targets_are_errors():
    with pytest.raises(InputError, match="run too short"):
        simulate_load(ENGINE, Load(LENGTHS, requests=10), 1.0)
    with pytest.raises(InputError, match="no arrivals"):
        simulate_load(ENGINE, LOAD, 0.0)
    with pytest.raises(InputError, match="sweep not possible"):
        sweep(rate_point, [])
    with pytest.raises(InputError, match="on backend 'dask'"):
        sweep(rate_point, [1.0], backend="dask")
    with pytest.raises(InputError, match="target not positive"):
        capacity_requests_per_s(latency_curve(ENGINE, LOAD, [1.0]), ttft_p99_s=0.0)
