import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetinfer.errors import InputError
from hetinfer.hardware import find_gpu, find_model
from hetinfer.simulation.step_time import (
    PRIOR_CONSTANTS,
    GpuConstants,
    StepTime,
    constants_of,
    kv_cache_tokens,
    median_constants,
    predict_step_time,
    scheduler_limits,
    step_time_s,
)

H100 = find_gpu("h100-pcie")
RTX_4090 = find_gpu("rtx-4090")
MODEL_14B = find_model("DeepSeek-R1-Distill-Qwen-14B")
MODEL_70B = find_model("Meta-Llama-3-70B-Instruct")


def test_step_adds_its_terms_around_a_rounded_roofline():
    step = StepTime(0.001, 0.003, 0.004, 0.0001, 0.0002, 0.00001)
    expected = 0.001 + 0.005 + 0.0001 + 2 * 0.0002 + 10 * 0.00001  # 3-4-5 triangle
    assert math.isclose(step_time_s(step, 1, emitting=2, context_tokens=10), expected)


@given(st.integers(1, 8192), st.integers(1, 8192))
def test_more_tokens_never_take_less_time(tokens, more):
    step = predict_step_time(MODEL_14B, H100, 1)
    assert step_time_s(step, tokens + more) >= step_time_s(step, tokens)


def test_weights_of_14b_take_15_ms_on_an_h100():
    step = predict_step_time(MODEL_14B, H100, 1)
    assert step.weights_s == pytest.approx(13.99 * 2 / (0.91 * 2000), rel=1e-12)
    assert step.communication_s == 0.0


def test_two_gpus_halve_weights_and_compute_and_have_to_talk():
    one, two = (predict_step_time(MODEL_14B, RTX_4090, count) for count in (1, 2))
    assert two.weights_s == pytest.approx(one.weights_s / 2)
    assert two.compute_s == pytest.approx(one.compute_s / 2)
    # two sums a layer of 5120 16-bit numbers, over 5 GB/s
    assert two.communication_s == pytest.approx(2 * 48 * 5120 * 2 / 5e9)


@pytest.mark.parametrize("count", [1, 4])
def test_constants_are_the_inverse_of_the_prediction(count):
    constants = GpuConstants(90e-6, 0.8, 0.7, 0.5, 4.0 if count > 1 else 5.0, 20e-6)
    step = predict_step_time(MODEL_14B, RTX_4090, count, constants)
    found = constants_of(step, MODEL_14B, RTX_4090, count)
    for name, value in constants.__dict__.items():
        assert getattr(found, name) == pytest.approx(value)


def test_median_constants_are_taken_one_by_one():
    low, prior, high = (GpuConstants(x, 0.9, 0.9, 4 - x, 5.0, 0.0) for x in (1.0, 2.0, 3.0))
    assert median_constants([high, low, prior]) == prior
    with pytest.raises(InputError, match="no fits"):
        median_constants([])


def test_kv_cache_of_14b_on_an_h100_holds_230_thousand_tokens():
    usable_gb = 0.9 * 80 * 1.024**3 - 2.5
    expected = (usable_gb - 2 * 14.77) * 1e9 / 196_608
    assert kv_cache_tokens(MODEL_14B, H100, 1) == int(expected)


def test_a_model_that_does_not_fit_says_what_is_needed():
    with pytest.raises(InputError, match=r"does not fit.*141.1 GB of weights on 1 of it"):
        kv_cache_tokens(MODEL_70B, H100, 1)


def test_scheduler_limits_follow_the_memory():
    assert scheduler_limits(H100) == (1024, 8192)
    assert scheduler_limits(RTX_4090) == (256, 2048)


def test_a_card_without_a_compute_rate_is_an_error():
    with pytest.raises(InputError, match="no compute rate"):
        predict_step_time(MODEL_14B, find_gpu("rtx-5090"), 1)


def test_every_tier_has_prior_constants():
    assert {"enterprise", "consumer"} <= set(PRIOR_CONSTANTS)
