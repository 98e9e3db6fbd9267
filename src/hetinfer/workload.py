"""What is asked of a server and when: requests, their arrivals and their lengths."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hetinfer.errors import InputError

STUDY_SEED = 42
STUDY_PROMPTS = 200
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Requests:
    """Requests by time of arrival; arrays of shape (n_requests,), in seconds and tokens.

    Requests with one `prompt_id` send one and the same text.
    """

    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    prompt_id: Ints


@dataclass(frozen=True)
class Lengths:
    """Prompt and output lengths in tokens, arrays of shape (n,), drawn from in pairs."""

    prompt_tokens: Ints
    output_tokens: Ints


def fresh_requests(arrival_s: Floats, prompt_tokens: Ints, output_tokens: Ints) -> Requests:
    """Requests that each send a text of their own, so that no cache of prompts helps."""
    return Requests(
        np.asarray(arrival_s, np.float64),
        np.asarray(prompt_tokens, np.int64),
        np.asarray(output_tokens, np.int64),
        np.arange(len(arrival_s)),
    )


def check_requests(requests: Requests) -> Requests:
    """The requests themselves when they can be served; InputError says which cannot, and why."""
    sizes = {name: array.shape for name, array in requests.__dict__.items()}
    n = requests.arrival_s.size
    if n == 0 or set(sizes.values()) != {(n,)}:
        raise _request_error("arrays of requests", sizes, "four of one length above 0")
    late = np.flatnonzero(~(np.diff(requests.arrival_s, prepend=0.0) >= 0))
    if late.size:
        raise _request_error(
            "arrivals negative or unsorted",
            f"{requests.arrival_s[late[0]]} s at request {late[0]}",
            "times from 0 that never fall",
        )
    for name in ("prompt_tokens", "output_tokens"):
        empty = np.flatnonzero(getattr(requests, name) < 1)
        if empty.size:
            got = f"{getattr(requests, name)[empty[0]]} at request {empty[0]}"
            raise _request_error(name, got, "at least 1")
    _, first_use, text = np.unique(requests.prompt_id, return_index=True, return_inverse=True)
    if (requests.prompt_tokens[first_use][text] != requests.prompt_tokens).any():
        raise _request_error("prompt_id", "one id with two lengths", "one text per id")
    return requests


def poisson_arrivals_s(
    n_requests: int, rate_requests_per_s: float, rng: np.random.Generator
) -> Floats:
    """Arrival times in seconds of a Poisson process, from 0; shape (n_requests,)."""
    return gamma_arrivals_s(n_requests, rate_requests_per_s, rng, burstiness=1.0)


def gamma_arrivals_s(
    n_requests: int, rate_requests_per_s: float, rng: np.random.Generator, *, burstiness: float
) -> Floats:
    """Arrival times in seconds with gamma gaps of mean 1/q and squared variation 1/burstiness.

    Burstiness 1 is Poisson, below 1 is burstier, as in vLLM's client. The first arrives at 0;
    shape (n_requests,). InputError for no request, or a rate or burstiness that is not positive.
    """
    if n_requests < 1 or not rate_requests_per_s > 0 or not burstiness > 0:
        raise _request_error(
            "no arrivals",
            f"{n_requests} requests, rate {rate_requests_per_s}, burstiness {burstiness}",
            "all above 0",
        )
    gaps_s = rng.gamma(burstiness, 1.0 / (rate_requests_per_s * burstiness), n_requests - 1)
    return np.concatenate([[0.0], np.cumsum(gaps_s)])


def draw_lengths(lengths: Lengths, n_requests: int, rng: np.random.Generator) -> Lengths:
    """`n_requests` pairs of prompt and output length, drawn with replacement."""
    drawn = rng.integers(0, lengths.prompt_tokens.size, n_requests)
    return Lengths(lengths.prompt_tokens[drawn], lengths.output_tokens[drawn])


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


def _request_error(what: str, got: object, expected: str) -> InputError:
    return InputError(what, got=got, expected=expected, where="the requests", do="correct them")
