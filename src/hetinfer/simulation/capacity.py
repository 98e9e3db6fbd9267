"""Steady-state capacity: the highest offered rate at which an engine keeps a latency target.

A long run of Poisson arrivals; the first and the last tenth of its requests are left out, so that
neither the empty start nor the drain at the end counts. Prompts are all new (cold: no cache helps)
or all repeat a fixed set of texts (warm: the cache helps where it holds them). A real workload lies
between the two.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pandas as pd

from hetinfer.errors import InputError
from hetinfer.simulation.calibration import PRIOR_FRONT_END
from hetinfer.simulation.engine import Engine, Simulated, simulate_engine
from hetinfer.workload import Floats, Lengths, Requests, poisson_arrivals_s

EDGE_FRAC = 0.1  # of the requests, at either end of a run, that its statistics leave out
FEWEST_REQUESTS = 500  # below, a 99th percentile rests on fewer than five requests
# rates of a curve as fractions of the backlogged throughput: coarse where latency is flat, then in
# small steps until the queue grows; that may be above 1, for a backlog makes an engine preempt
CURVE_FRACS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
KNEE_FACTOR = 1.08
MOST_KNEE_STEPS = 16
SATURATING_FACTOR = 50.0  # times one request's own pace: certainly above what any batch can serve
OVERLOAD_WAIT_S = 0.5  # waits shorter than this are bursts, however they compare
OVERLOAD_GROWTH = 1.5  # of the mean wait from the middle to the end of a run


@dataclass(frozen=True)
class LoadPoint:
    """One engine at one offered rate, in steady state.

    Latencies in seconds over the middle of the run; throughput over the same time. When
    `overloaded`, the queue grew to the end: its latencies grow with the length of the run, and only
    the throughput, which is the saturated one, means something.
    """

    rate_requests_per_s: float
    requests: int
    throughput_requests_per_s: float
    throughput_tokens_per_s: float
    output_throughput_tokens_per_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    tpot_p50_s: float
    tpot_p99_s: float
    cached_frac: float
    preemptions: int
    overloaded: bool


@dataclass(frozen=True)
class Load:
    """What is asked of an engine: lengths to draw from, how many, new texts or repeated ones."""

    lengths: Lengths
    requests: int
    repeated: bool = False
    seed: int = 42


def simulate_load(engine: Engine, load: Load, rate_requests_per_s: float) -> LoadPoint:
    """The engine under Poisson arrivals at one rate; the same seed draws the same requests.

    InputError for a rate that is not positive or fewer than 500 requests, too few for P99.
    """
    if load.requests < FEWEST_REQUESTS:
        raise InputError(
            "run too short",
            got=f"{load.requests} requests",
            expected=f"at least {FEWEST_REQUESTS}, for a 99th percentile",
            where="simulate_load",
            do="simulate more requests",
        )
    requests = draw_requests(load, rate_requests_per_s)
    rng = np.random.default_rng(load.seed)
    return _load_point(simulate_engine(requests, engine, rng), rate_requests_per_s)


def draw_requests(load: Load, rate_requests_per_s: float) -> Requests:
    """Poisson arrivals with lengths drawn in pairs; a repeated text is one of those drawn from."""
    rng = np.random.default_rng(load.seed)
    text = rng.integers(0, load.lengths.prompt_tokens.size, load.requests)
    return Requests(
        poisson_arrivals_s(load.requests, rate_requests_per_s, rng),
        load.lengths.prompt_tokens[text],
        load.lengths.output_tokens[text],
        text if load.repeated else np.arange(load.requests),
    )


def backlogged_throughput(engine: Engine, load: Load) -> float:
    """Requests per second that the engine completes when all are waiting from the start.

    Admission is greedy, so a backlog fills the KV cache and preempted requests start over: this is
    less than the highest rate that an engine without a backlog keeps up with.
    """
    alone = replace(load, requests=FEWEST_REQUESTS)
    pace = (
        FEWEST_REQUESTS
        / simulate_engine(
            draw_requests(alone, 1e9), replace(engine, max_sequences=1), np.random.default_rng(0)
        ).finished_s.max()
    )
    return simulate_load(engine, load, SATURATING_FACTOR * float(pace)).throughput_requests_per_s


def latency_curve(
    engine: Engine, load: Load, rates_requests_per_s: Sequence[float] | None = None
) -> pd.DataFrame:
    """One row a rate, columns of `LoadPoint`; without rates, from a trickle to overload."""
    if rates_requests_per_s is not None:
        points = [simulate_load(engine, load, rate) for rate in sorted(rates_requests_per_s)]
        return pd.DataFrame([asdict(point) for point in points])
    backlogged = backlogged_throughput(engine, load)
    points = [simulate_load(engine, load, fraction * backlogged) for fraction in CURVE_FRACS]
    for _ in range(MOST_KNEE_STEPS):
        if points[-1].overloaded:
            break
        rate = KNEE_FACTOR * points[-1].rate_requests_per_s
        points.append(simulate_load(engine, load, rate))
    return pd.DataFrame([asdict(point) for point in points])


def capacity_requests_per_s(
    curve: pd.DataFrame, *, ttft_p99_s: float, tpot_p99_s: float = np.inf
) -> float:
    """The highest rate up to which every rate of the curve keeps both targets; 0 if none does.

    Between the last rate that does and the first that does not, linear in the logarithm of the
    latency that is first to miss. An overloaded rate keeps no target, and its latencies, which grow
    with the run, are not interpolated towards.
    """
    rates = curve["rate_requests_per_s"].to_numpy(float)
    excess = np.full(rates.size, -np.inf)
    for name, target_s in (("ttft_p99_s", ttft_p99_s), ("tpot_p99_s", tpot_p99_s)):
        if not target_s > 0:
            raise InputError(
                "target not positive", got=target_s, expected="seconds above 0", where=name,
                do="correct it",
            )  # fmt: skip
        excess = np.maximum(excess, np.log(curve[name].to_numpy(float)) - np.log(target_s))
    overloaded = curve["overloaded"].to_numpy(bool)
    missed = np.flatnonzero((excess > 0) | overloaded)
    if missed.size == 0:
        return float(rates[-1])
    first = int(missed[0])
    if first == 0:
        return 0.0
    if overloaded[first]:
        return float(rates[first - 1])
    before, after = excess[first - 1], excess[first]
    share = -before / (after - before)
    return float(rates[first - 1] + share * (rates[first] - rates[first - 1]))


def healthy_host(engine: Engine) -> Engine:
    """The same engine with a front end that keeps up: what its GPUs could do."""
    return replace(engine, front_end=PRIOR_FRONT_END)


def _load_point(simulated: Simulated, rate_requests_per_s: float) -> LoadPoint:
    requests = simulated.requests
    n = requests.arrival_s.size
    middle = slice(int(n * EDGE_FRAC), int(n * (1 - EDGE_FRAC)))
    ends_s = np.sort(simulated.finished_s)[[middle.start, middle.stop - 1]]
    served = (simulated.finished_s > ends_s[0]) & (simulated.finished_s <= ends_s[1])
    span_s = float(ends_s[1] - ends_s[0])
    output = int(requests.output_tokens[served].sum())
    prompt = int(requests.prompt_tokens[served].sum())
    tpot_s = simulated.tpot_s[middle]
    return LoadPoint(
        rate_requests_per_s,
        n,
        float(np.count_nonzero(served)) / span_s,
        (prompt + output) / span_s,
        output / span_s,
        *_percentiles(simulated.ttft_s[middle]),
        *_percentiles(tpot_s[~np.isnan(tpot_s)]),
        float(simulated.cached_tokens[middle].sum() / requests.prompt_tokens[middle].sum()),
        int(simulated.preemptions.sum()),
        _is_overloaded(simulated),
    )


def _percentiles(latencies_s: Floats) -> tuple[float, float]:
    if latencies_s.size == 0:
        return np.nan, np.nan
    median, high = np.percentile(latencies_s, [50, 99])
    return float(median), float(high)


def _is_overloaded(simulated: Simulated) -> bool:
    waits_s = simulated.queue_s
    n = waits_s.size
    tenth = max(1, n // 10)
    middle_s, end_s = waits_s[n // 2 - tenth : n // 2].mean(), waits_s[-tenth:].mean()
    return bool(end_s > OVERLOAD_WAIT_S and end_s > OVERLOAD_GROWTH * middle_s)
