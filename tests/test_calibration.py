import dataclasses
import math

import numpy as np
import pandas as pd
import pytest

from hetinfer.errors import InputError
from hetinfer.hardware import find_gpu, find_model
from hetinfer.runs import load_recorded
from hetinfer.simulation.calibration import (
    FREE,
    HUBER_AT,
    SPREADS,
    STALLED_RUN,
    STALLED_STATISTICS,
    Fit,
    fit_configuration,
    fit_engine,
    fitted_statistics,
    free_parameters,
    prior_engine,
    residuals,
    scaled_engine,
)
from hetinfer.simulation.parity import error_table, parity_table
from hetinfer.simulation.prediction import gpu_constants, leave_one_out, predict_engine
from hetinfer.simulation.replay import STATISTICS, replay_statistics, study_replay
from hetinfer.simulation.step_time import step_time_s
from hetinfer.workload import Lengths

H100, RTX_4090 = find_gpu("h100-pcie"), find_gpu("rtx-4090")
MODEL_7B = find_model("DeepSeek-R1-Distill-Qwen-7B")
MODEL_14B = find_model("DeepSeek-R1-Distill-Qwen-14B")
RNG = np.random.default_rng(42)
LENGTHS = Lengths(RNG.integers(4, 400, 200), RNG.integers(2, 400, 200))
RATES = (32.0, 16.0, 8.0)


def test_fit_recovers_an_engine_from_its_own_statistics():
    prior = prior_engine(MODEL_7B, H100, 1)
    truth = scaled_engine(prior, {"launch_s": 1.3, "compute_s": 0.85, "context_s": 1.2})
    replay = study_replay(LENGTHS, RATES)
    recorded = replay_statistics(truth, replay, inter_token=True)
    found, cost = fit_engine(prior, replay, recorded, prior)
    empty_s = [step_time_s(e.step_time, 1) for e in (found, truth)]  # launch and weights add up
    assert empty_s[0] == pytest.approx(empty_s[1], rel=0.02)
    assert found.step_time.compute_s == pytest.approx(truth.step_time.compute_s, rel=0.05)
    start = residuals(replay_statistics(prior, replay, inter_token=True), recorded)
    assert cost < 0.05 * float(start @ start)


def test_fit_starts_from_physics_and_leaves_what_is_absent_absent():
    one, several = prior_engine(MODEL_14B, H100, 1), prior_engine(MODEL_14B, RTX_4090, 4)
    assert {"communication_s", "stall_frac", "kv_tokens"} & set(free_parameters(one)) == set()
    assert {"communication_s", "stall_frac", "step_s"} <= set(free_parameters(several))
    small_cache = prior_engine(find_model("DeepSeek-R1-Distill-Qwen-32B"), H100, 1)
    assert "kv_tokens" in free_parameters(small_cache)
    near_the_study_s_need = prior_engine(MODEL_14B, RTX_4090, 2)
    assert "kv_tokens" in free_parameters(near_the_study_s_need)
    assert "kv_tokens" not in free_parameters(prior_engine(MODEL_7B, RTX_4090, 1))
    assert set(free_parameters(several)) <= set(FREE)


def test_scaling_changes_only_what_is_named():
    engine = prior_engine(MODEL_14B, RTX_4090, 2)
    scaled = scaled_engine(engine, {"weights_s": 2.0, "step_s": 3.0, "kv_tokens": 0.5})
    assert scaled.step_time.weights_s == 2 * engine.step_time.weights_s
    assert scaled.front_end.step_s == pytest.approx(3 * engine.front_end.step_s)
    assert scaled.kv_tokens == round(engine.kv_tokens / 2)
    assert scaled_engine(engine, {}) == engine


def test_residual_is_quadratic_near_zero_and_linear_far_away():
    recorded = np.ones((1, len(STATISTICS)))
    place = list(SPREADS).index("ttft_p99_s")
    near, far = recorded.copy(), recorded.copy()
    near[0, place] = math.exp(0.01 * SPREADS["ttft_p99_s"])
    far[0, place] = math.exp(-1000 * SPREADS["ttft_p99_s"])
    assert residuals(near, recorded)[place] == pytest.approx(0.01, rel=1e-3)
    assert residuals(far, recorded)[place] ** 2 == pytest.approx(2 * HUBER_AT * 1000, rel=1e-2)
    assert residuals(far, recorded)[place] < 0


def test_statistics_without_spread_or_value_do_not_count():
    recorded = np.ones((2, len(STATISTICS)))
    simulated = recorded.copy()
    simulated[:, STATISTICS.index("itl_p50_s")] = np.nan
    simulated[:, STATISTICS.index("itl_p100_s")] = 99.0
    assert not residuals(simulated, recorded).any()


def test_busy_host_counts_durations_fully_and_what_its_requests_see_less():
    recorded = np.ones((1, len(STATISTICS)))
    off = residuals(1.001 * recorded, recorded, busy_host=True)
    usual = residuals(1.001 * recorded, recorded)
    names = ["duration_s", "tpot_p50_s", "tpot_mean_s", "tpot_p99_s", "ttft_p50_s", "itl_p50_s"]
    places = [STATISTICS.index(name) for name in names]
    assert (off[places] / usual[places]).tolist() == pytest.approx(
        [1.0, 0.5, 0.2, 0.2, 0.2, 0.0], rel=1e-2
    )


def test_the_stalled_run_is_not_fitted_where_its_stall_decides():
    runs = load_recorded()
    own = runs[(runs["model"] == STALLED_RUN[0]) & (runs["gpu"] == "h100-pcie")]
    missing = np.isnan(fitted_statistics(own))
    assert missing[0].sum() == len(STALLED_STATISTICS)
    assert not missing[1:].any()


def test_too_few_runs_are_an_error():
    prior = prior_engine(MODEL_7B, H100, 1)
    replay = study_replay(LENGTHS, (8.0,))
    with pytest.raises(InputError, match="too few runs to fit"):
        fit_engine(prior, replay, replay_statistics(prior, replay), prior)


def recorded_7b() -> pd.DataFrame:
    runs = load_recorded()
    return runs[(runs["model"] == MODEL_7B.model) & (runs["gpu"] == "h100-pcie")]


def test_parity_names_rate_set_and_error():
    fit = Fit(MODEL_7B.model, "h100-pcie", 1, prior_engine(MODEL_7B, H100, 1), 0.0)
    parity = parity_table([fit], recorded_7b(), {MODEL_7B.model: LENGTHS})
    assert len(parity) == 5 * (len(STATISTICS) + 1)
    row = parity[(parity["statistic"] == "duration_s") & (parity["rate_requests_per_s"] == 16)]
    assert row["set"].item() == "validation"
    expected = row["simulated"].item() / row["recorded"].item() - 1
    assert row["error_frac"].item() == pytest.approx(expected)
    errors = error_table(parity)
    assert set(errors["group"]) == {"H100 x1, up to 14B", "all but several 4090s"}
    assert set(errors["n"]) == {2, 3}


def test_fit_of_recorded_runs_comes_nearer_to_them_than_physics_does():
    fit = fit_configuration(recorded_7b(), LENGTHS)
    prior = dataclasses.replace(fit, engine=prior_engine(MODEL_7B, H100, 1))
    errors = [
        parity_table([one], recorded_7b(), {MODEL_7B.model: LENGTHS})
        .query("statistic == 'tpot_p50_s' and set == 'fitted'")["error_frac"]
        .abs()
        .mean()
        for one in (fit, prior)
    ]
    assert errors[0] < errors[1]


def fit_of(model: str, launch: float) -> Fit:
    prior = prior_engine(find_model(model), H100, 1)
    return Fit(
        find_model(model).model, "h100-pcie", 1, scaled_engine(prior, {"launch_s": launch}), 1
    )


def test_prediction_takes_the_median_of_the_other_models():
    fits = [fit_of("phi-4", 1.0), fit_of("gemma-2-9b-it", 1.2), fit_of("AceMath-7B-Instruct", 2.0)]
    assert gpu_constants(fits, H100, 1).launch_s_per_layer == pytest.approx(1.2 * 75e-6)
    predicted = predict_engine(MODEL_14B, H100, 1, fits)
    assert predicted.step_time.launch_s == pytest.approx(1.2 * 75e-6 * 48)
    left_out = leave_one_out(fits, "h100-pcie", 1)
    assert left_out[0].engine.step_time.launch_s == pytest.approx(1.6 * 75e-6 * 40)
    assert [fit.cost for fit in left_out] == [math.inf] * 3


def test_prediction_without_a_fit_that_is_alike_is_physics_alone():
    assert predict_engine(MODEL_14B, RTX_4090, 2, [fit_of("phi-4", 3.0)]) == prior_engine(
        MODEL_14B, RTX_4090, 2
    )
    with pytest.raises(InputError, match="nothing to leave out"):
        leave_one_out([fit_of("phi-4", 1.0)], "h100-pcie", 1)
