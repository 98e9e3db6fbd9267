import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetinfer.drain import interpolate_drain_s, interpolation_errors, with_drains
from hetinfer.errors import InputError
from hetinfer.runs import average_replicates, load_recorded

CELLS = with_drains(average_replicates(load_recorded()))
QWEN_14B = CELLS.query("model.str.endswith('Qwen-14B') and gpu == 'h100-pcie'")


def test_window_and_drain_make_up_the_duration():
    assert ((CELLS["last_arrival_s"] + CELLS["drain_s"]) - CELLS["duration_s"]).abs().max() < 1e-9


def test_window_at_one_request_per_second_is_the_last_arrival():
    assert math.isclose(
        187.583733264819, QWEN_14B.query("rate_requests_per_s == 1")["last_arrival_s"].iloc[0]
    )


def test_run_that_ends_before_its_last_arrival_is_an_error():
    with pytest.raises(InputError, match="no drain"):
        with_drains(load_recorded().assign(duration_s=1.0))


def test_drain_halfway_between_two_rates_is_their_geometric_mean():
    at = QWEN_14B.set_index("rate_requests_per_s")["drain_s"]
    halfway = interpolate_drain_s(QWEN_14B, math.sqrt(8 * 16))
    assert math.isclose(math.sqrt(at[8.0] * at[16.0]), halfway)


@given(st.sampled_from([1.0, 4.0, 8.0, 16.0, 32.0]))
def test_drain_at_a_measured_rate_is_the_measured_one(rate):
    at = QWEN_14B.set_index("rate_requests_per_s")["drain_s"]
    assert math.isclose(at[rate], interpolate_drain_s(QWEN_14B, rate))


@pytest.mark.parametrize("rate", [0.5, 33.0, math.inf, math.nan])
def test_rate_outside_the_measured_ones_is_an_error(rate):
    with pytest.raises(InputError, match="outside the measured"):
        interpolate_drain_s(QWEN_14B, rate)


def test_interpolation_misses_the_duration_by_less_than_four_per_cent():
    errors = interpolation_errors(CELLS)
    assert len(errors) == 24 * 3
    assert errors["error_frac"].abs().mean() < 0.04
