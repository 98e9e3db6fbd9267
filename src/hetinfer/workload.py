"""What is asked of a server and when: the study's own arrivals, replayed."""

import numpy as np
import numpy.typing as npt

from hetinfer.errors import InputError

STUDY_SEED = 42
STUDY_PROMPTS = 200


def study_arrivals_s(
    n_requests: int, rate_requests_per_s: float, seed: int = STUDY_SEED
) -> npt.NDArray[np.float64]:
    """Arrival times of a run's requests in seconds, as the study's client sent them; (n_requests,).

    t_1 = 0 and t_(i+1) = t_i + g_i with gaps g = RandomState(seed).gamma(1, 1/q): the client sends,
    then sleeps. At an infinite rate all arrive at 0. InputError for no request or a rate that
    is not positive. Source: `get_request` of vLLM 0.8.5's benchmark_serving.py.
    """
    gaps_s = _study_gaps_s(n_requests, rate_requests_per_s, seed)
    return np.concatenate([[0.0], np.cumsum(gaps_s[:-1])])


def arrival_window_s(n_requests: int, rate_requests_per_s: float, seed: int = STUDY_SEED) -> float:
    """Shortest duration of a run in seconds: the sum of all gaps, for the client sleeps after each.

    189.097/q for the study's 200 requests, 1.514/q after the last arrival. Raises as
    `study_arrivals_s`.
    """
    return float(_study_gaps_s(n_requests, rate_requests_per_s, seed).sum())


def _study_gaps_s(
    n_requests: int, rate_requests_per_s: float, seed: int
) -> npt.NDArray[np.float64]:
    if n_requests < 1 or not rate_requests_per_s > 0:
        raise InputError(
            "no arrivals",
            got=f"{n_requests} requests at {rate_requests_per_s} per s",
            expected="at least one request at a rate above 0",
            where="the study's arrivals",
            do="correct the count or the rate",
        )
    return np.random.RandomState(seed).gamma(1.0, 1.0 / rate_requests_per_s, n_requests)
