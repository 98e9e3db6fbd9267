"""The study's runs in the simulator: its prompts, its arrivals, and its order of rates.

Each configuration was measured on one server with the same prompts at 32, 16, 8, 4 and 1 requests
per second, in that order. Before each run its client sent the first prompt once more, uncounted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from hetinfer.errors import InputError
from hetinfer.runs import CONFIGURATION
from hetinfer.simulation.engine import Engine, Simulated, simulate_engine
from hetinfer.workload import (
    STUDY_PROMPTS,
    Floats,
    Lengths,
    Requests,
    arrival_window_s,
    study_arrivals_s,
)

STUDY_RATES = (32.0, 16.0, 8.0, 4.0, 1.0)
CLIENT_LAG_S = (
    1.05e-3  # what each of the client's sleeps takes longer than asked (1.5B on the H100)
)
RUN_SPACING_S = (
    20_000.0  # between two runs' starts: far beyond the longest; idle time costs nothing
)
TEST_LEAD_S = 5_000.0  # from the uncounted test request to the first counted one
PERCENTILES = (50, 90, 99)
STATISTICS = (
    "duration_s",
    "tpot_mean_s",
    "tpot_p50_s",
    "tpot_p90_s",
    "tpot_p99_s",
    "tpot_std_s",
    "ttft_mean_s",
    "ttft_p50_s",
    "ttft_p90_s",
    "ttft_p99_s",
    "itl_mean_s",
    "itl_p50_s",
    "itl_p90_s",
    "itl_p99_s",
    "itl_p100_s",
)


@dataclass(frozen=True)
class Replay:
    """Runs that follow each other on one server, as one row of requests.

    `first` is each run's first counted request, `starts_s` and `windows_s` its start and the time
    its client needs to send all. Arrays of shape (n_runs,); each run has `prompts` requests.
    """

    requests: Requests
    prompts: int
    first: tuple[int, ...]
    starts_s: tuple[float, ...]
    windows_s: tuple[float, ...]


def study_replay(lengths: Lengths, rates_requests_per_s: Sequence[float] = STUDY_RATES) -> Replay:
    """The runs at these rates, in this order, on one server; every run sends the same prompts.

    InputError unless there are lengths for as many requests as the study sent.
    """
    n = lengths.prompt_tokens.size
    if n != STUDY_PROMPTS:
        raise InputError(
            "lengths of another run",
            got=f"{n} requests",
            expected=f"the study's {STUDY_PROMPTS}",
            where="study_replay",
            do="pass lengths that were reconstructed for the study",
        )
    runs = range(len(rates_requests_per_s))
    starts_s = tuple(RUN_SPACING_S * run + TEST_LEAD_S for run in runs)
    lags_s = CLIENT_LAG_S * np.arange(n)
    arrivals_s = [
        np.append(start_s - TEST_LEAD_S, start_s + study_arrivals_s(n, rate) + lags_s)
        for start_s, rate in zip(starts_s, rates_requests_per_s, strict=True)
    ]
    text = np.tile(np.append(0, np.arange(n)), len(runs))
    requests = Requests(
        np.concatenate(arrivals_s), lengths.prompt_tokens[text], lengths.output_tokens[text], text
    )
    windows_s = tuple(arrival_window_s(n, q) + CLIENT_LAG_S * n for q in rates_requests_per_s)
    return Replay(requests, n, tuple(run * (n + 1) + 1 for run in runs), starts_s, windows_s)


def with_lengths(replay: Replay, lengths: Lengths) -> Replay:
    """The same runs with other lengths."""
    text = replay.requests.prompt_id
    requests = replace(
        replay.requests,
        prompt_tokens=lengths.prompt_tokens[text],
        output_tokens=lengths.output_tokens[text],
    )
    return replace(replay, requests=requests)


def replay_statistics(engine: Engine, replay: Replay, *, inter_token: bool = False) -> Floats:
    """What the study's client would have reported: `STATISTICS` by run, shape (n_runs, 15).

    Percentiles of inter-token latency only if asked for (they take most of the time), else NaN.
    """
    rng = np.random.default_rng(0)  # stalls of the front end: the same in every evaluation of a fit
    simulated = simulate_engine(replay.requests, engine, rng, token_times=inter_token)
    return np.array([_run_statistics(simulated, replay, run) for run in range(len(replay.first))])


def statistics_frame(statistics: Floats, rates_requests_per_s: Sequence[float]) -> pd.DataFrame:
    """Statistics as a frame, one row a run, with `rate_requests_per_s` and the columns of runs."""
    table = pd.DataFrame(statistics, columns=list(STATISTICS))
    table.insert(0, "rate_requests_per_s", list(rates_requests_per_s))
    return table.assign(throughput_requests_per_s=STUDY_PROMPTS / table["duration_s"])


def recorded_statistics(runs: pd.DataFrame, rates_requests_per_s: Sequence[float]) -> Floats:
    """`STATISTICS` of one configuration's runs, replicates averaged; shape (n_rates, 15).

    InputError when runs of several configurations are given, or a rate has none.
    """
    if len(runs[CONFIGURATION].drop_duplicates()) != 1:
        raise _runs_error(f"{len(runs[CONFIGURATION].drop_duplicates())} configurations", "one")
    means = runs.groupby("rate_requests_per_s")[list(STATISTICS)].mean()
    missing = [rate for rate in rates_requests_per_s if rate not in means.index]
    if missing:
        raise _runs_error(f"no run at {missing[0]:g} requests per second", "a run at every rate")
    statistics: Floats = means.loc[list(rates_requests_per_s)].to_numpy(float)
    return statistics


def _run_statistics(simulated: Simulated, replay: Replay, run: int) -> list[float]:
    counted = slice(replay.first[run], replay.first[run] + replay.prompts)
    gaps = simulated.requests.output_tokens[counted] - 1
    ttft_s = simulated.ttft_s[counted]
    tpot_s = simulated.tpot_s[counted][gaps > 0]
    busy_s = simulated.finished_s[counted].max() - replay.starts_s[run]
    return [
        max(float(busy_s), replay.windows_s[run]),
        float(tpot_s.mean()),
        *np.percentile(tpot_s, PERCENTILES),
        float(tpot_s.std()),
        float(ttft_s.mean()),
        *np.percentile(ttft_s, PERCENTILES),
        float((tpot_s * gaps[gaps > 0]).sum() / gaps.sum()),
        *_inter_token_percentiles_s(simulated, counted),
    ]


def _inter_token_percentiles_s(simulated: Simulated, counted: slice) -> list[float]:
    if simulated.token_s.size == 0:
        return [np.nan] * (len(PERCENTILES) + 1)
    ends = np.cumsum(simulated.requests.output_tokens)
    before = ends[counted.start] - simulated.requests.output_tokens[counted.start]
    ends_here = ends[counted] - before
    gaps_s = np.diff(simulated.token_s[before : ends[counted.stop - 1]])
    return list(np.percentile(np.delete(gaps_s, ends_here[:-1] - 1), (*PERCENTILES, 100)))


def _runs_error(got: str, expected: str) -> InputError:
    return InputError(
        "runs not usable",
        got=got,
        expected=expected,
        where="recorded_statistics",
        do="select the runs of one configuration",
    )
