import math

import numpy as np
import pytest

from hetinfer.errors import InputError
from hetinfer.runs import load_recorded
from hetinfer.workload import (
    STUDY_PROMPTS,
    Lengths,
    arrival_window_s,
    draw_lengths,
    gamma_arrivals_s,
    poisson_arrivals_s,
    study_arrivals_s,
)


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


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 4.0])
def test_gamma_gaps_have_the_rate_and_the_variation_asked_for(burstiness):
    rng = np.random.default_rng(42)
    gaps_s = np.diff(gamma_arrivals_s(100_001, 8.0, rng, burstiness=burstiness))
    assert gaps_s.mean() == pytest.approx(1 / 8, rel=0.02)
    assert gaps_s.var() / gaps_s.mean() ** 2 == pytest.approx(1 / burstiness, rel=0.05)


def test_poisson_is_gamma_with_burstiness_one_and_starts_at_zero():
    poisson_s = poisson_arrivals_s(50, 2.0, np.random.default_rng(1))
    gamma_s = gamma_arrivals_s(50, 2.0, np.random.default_rng(1), burstiness=1.0)
    assert np.array_equal(poisson_s, gamma_s)
    assert poisson_s[0] == 0.0


@pytest.mark.parametrize(
    ("n", "rate", "burstiness"), [(0, 1.0, 1.0), (1, -1.0, 1.0), (1, 1.0, 0.0)]
)
def test_arrivals_need_a_count_a_rate_and_a_burstiness(n, rate, burstiness):
    with pytest.raises(InputError, match="no arrivals"):
        gamma_arrivals_s(n, rate, np.random.default_rng(1), burstiness=burstiness)


def test_lengths_are_drawn_in_pairs():
    lengths = Lengths(np.array([1, 2, 3]), np.array([10, 20, 30]))
    drawn = draw_lengths(lengths, 1000, np.random.default_rng(1))
    assert np.array_equal(drawn.prompt_tokens * 10, drawn.output_tokens)
    assert set(drawn.prompt_tokens) == {1, 2, 3}
