import math

import numpy as np
import pytest

from hetinfer.errors import InputError
from hetinfer.runs import load_recorded
from hetinfer.workload import STUDY_PROMPTS, arrival_window_s, study_arrivals_s


def test_study_sends_its_first_request_at_once_and_its_last_after_187_seconds():
    arrivals_s = study_arrivals_s(200, 1.0)
    assert arrivals_s[0] == 0.0
    assert math.isclose(187.583733264819, arrivals_s[-1])


def test_study_window_is_the_sum_of_all_gaps():
    assert math.isclose(189.09729545674986, arrival_window_s(200, 1.0))


@pytest.mark.parametrize("rate", [4.0, 8.0, 16.0, 32.0])
def test_arrivals_scale_with_the_rate(rate):
    assert np.allclose(study_arrivals_s(200, 1.0) / rate, study_arrivals_s(200, rate))


def test_no_recorded_run_is_shorter_than_its_window():
    runs = load_recorded()
    windows_s = runs["rate_requests_per_s"].map(lambda q: arrival_window_s(STUDY_PROMPTS, q))
    assert (runs["duration_s"] > windows_s).all()


def test_all_requests_arrive_at_once_at_an_infinite_rate():
    assert not study_arrivals_s(3, math.inf).any()


@pytest.mark.parametrize(("count", "rate"), [(0, 1.0), (1, 0.0), (1, -1.0), (1, math.nan)])
def test_no_request_and_no_rate_are_errors(count, rate):
    with pytest.raises(InputError, match="no arrivals"):
        study_arrivals_s(count, rate)
