"""One serving engine, simulated request by request: what goes in, what comes out, what is checked.

The event loop itself, and the rules it follows, are in `event_loop.py`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hetinfer.errors import InputError
from hetinfer.simulation import event_loop
from hetinfer.simulation.event_loop import Demand, Limits, Outcome, Stream
from hetinfer.simulation.step_time import StepTime, cost_of
from hetinfer.workload import Requests, check_requests

BLOCK_TOKENS = 16  # vLLM's default size of one block of the KV cache
STALL_DRAWS = 1 << 16  # stalls are drawn ahead and used in a cycle, one a step
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class FrontEnd:
    """The station between client and engine, in seconds.

    A request reaches the scheduler `receive_s` after it was sent (HTTP and tokenising: a delay, not
    a queue). A step's tokens reach their clients through one queue, first come first served, which
    takes `step_s + token_s` x tokens, and `stall_s` more with probability `stall_frac`.
    """

    receive_s: float = 0.0
    step_s: float = 0.0
    token_s: float = 0.0
    stall_s: float = 0.0
    stall_frac: float = 0.0


@dataclass(frozen=True)
class Engine:
    """One engine: its limits, the time of its steps, and its front end.

    `kv_tokens` is what the paged cache holds in all, in whole blocks of `block_tokens`.
    """

    kv_tokens: int
    max_sequences: int
    max_batched_tokens: int
    step_time: StepTime
    front_end: FrontEnd = FrontEnd()
    prefix_caching: bool = True
    block_tokens: int = BLOCK_TOKENS


@dataclass(frozen=True)
class Simulated:
    """What became of each request, in the order given, and the engine's totals; all in seconds.

    Arrays of shape (n_requests,): `queue_s` from sent to first scheduled, `ttft_s` from sent to
    first token seen, `tpot_s` the mean gap between a request's tokens (NaN with one token),
    `finished_s` when the last token was seen. `token_s` holds every token's time, request after
    request, or nothing when not asked for. `busy_s` is the time spent in steps.
    """

    requests: Requests
    queue_s: Floats
    ttft_s: Floats
    tpot_s: Floats
    finished_s: Floats
    cached_tokens: Ints
    preemptions: Ints
    token_s: Floats
    steps: int
    computed_tokens: int
    busy_s: float
    peak_blocks: int
    peak_running: int


def simulate_engine(
    requests: Requests,
    engine: Engine,
    rng: np.random.Generator | None = None,
    *,
    token_times: bool = False,
) -> Simulated:
    """Serve the requests on one engine that starts idle, with an empty cache.

    Requests with one `prompt_id` hold one text: what an earlier one left in the cache is not
    computed again. Runs that follow each other on one server are one call with arrivals far apart.
    `rng` draws the front end's stalls and is needed only where there are any. InputError for
    unusable requests or limits, and for a request that the cache can never hold.
    """
    check_requests(requests)
    check_engine(engine, requests)
    demand, limits = _demand(requests, engine), _limits(requests, engine)
    outcome = _empty_outcome(requests, token_times)
    event_loop.run_event_loop(
        event_loop.new_state(demand, limits, outcome.marks),
        demand,
        limits,
        cost_of(engine.step_time),
        _stream(engine.front_end, rng),
        outcome,
    )
    return _simulated(requests, outcome)


def inter_token_s(simulated: Simulated) -> Floats:
    """Gaps between the tokens of each request, in seconds, all requests in one row (n_gaps,).

    InputError when the run was simulated without token times.
    """
    if simulated.token_s.size == 0:
        raise InputError(
            "no token times",
            got="a run simulated without them",
            expected="simulate_engine(..., token_times=True)",
            where="inter_token_s",
            do="simulate it again with them",
        )
    first = np.cumsum(simulated.requests.output_tokens)[:-1] - 1
    return np.delete(np.diff(simulated.token_s), first)


def check_engine(engine: Engine, requests: Requests) -> None:
    """InputError unless every limit is usable and the cache can hold the longest request."""
    for name in ("kv_tokens", "max_sequences", "max_batched_tokens", "block_tokens"):
        if getattr(engine, name) < 1:
            raise _engine_error(name, getattr(engine, name), "at least 1", "raise it")
    if engine.max_sequences > engine.max_batched_tokens:
        got = f"{engine.max_sequences} sequences in {engine.max_batched_tokens} tokens"
        raise _engine_error("budget too small", got, "a token for every sequence", "raise it")
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    holds = engine.kv_tokens // engine.block_tokens * engine.block_tokens
    if longest > holds:
        raise _engine_error(
            "request longer than the KV cache",
            f"{longest} tokens",
            f"at most {holds}",
            "use more or larger GPUs, or shorter requests",
        )


def _engine_error(what: str, got: object, expected: str, do: str) -> InputError:
    return InputError(what, got=got, expected=expected, where="the simulated engine", do=do)


def _demand(requests: Requests, engine: Engine) -> Demand:
    ready_s = requests.arrival_s + engine.front_end.receive_s
    blocks = requests.prompt_tokens // engine.block_tokens
    first_key, keys = np.zeros_like(blocks), 0
    if engine.prefix_caching:
        _, first_use, text = np.unique(requests.prompt_id, return_index=True, return_inverse=True)
        ends = np.cumsum(blocks[first_use])
        first_key, keys = (ends - blocks[first_use])[text], int(ends[-1])
    return Demand(ready_s, requests.prompt_tokens, requests.output_tokens, first_key, keys)


def _limits(requests: Requests, engine: Engine) -> Limits:
    if engine.max_sequences > engine.max_batched_tokens:
        got = f"{engine.max_sequences} sequences in {engine.max_batched_tokens} tokens"
        raise _engine_error("budget too small", got, "a token for every sequence", "raise it")
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    return Limits(
        blocks=engine.kv_tokens // engine.block_tokens,
        block_tokens=engine.block_tokens,
        sequences=min(engine.max_sequences, requests.arrival_s.size),
        batched_tokens=engine.max_batched_tokens,
        caching=engine.prefix_caching,
        row=-(-longest // engine.block_tokens),
    )


def _stream(front_end: FrontEnd, rng: np.random.Generator | None) -> Stream:
    stalls_s: Floats = np.zeros(1)
    if front_end.stall_frac > 0:
        if rng is None:
            raise _engine_error("no rng", "none", "a generator to draw stalls with", "pass rng")
        stalls_s = np.where(rng.random(STALL_DRAWS) < front_end.stall_frac, front_end.stall_s, 0.0)
    return Stream(front_end.step_s, front_end.token_s, stalls_s)


def _empty_outcome(requests: Requests, token_times: bool) -> Outcome:
    n = requests.arrival_s.size
    ends = np.cumsum(requests.output_tokens) if token_times else np.zeros(0, np.int64)
    return Outcome(
        admitted_s=np.zeros(n),
        first_s=np.zeros(n),
        last_s=np.zeros(n),
        cached=np.zeros(n, np.int64),
        preemptions=np.zeros(n, np.int64),
        first_token=ends - requests.output_tokens if token_times else ends,
        tokens_s=np.zeros(int(ends[-1]) if token_times else 0),
        marks=np.zeros(event_loop.MARKS, np.int64),
        clocks_s=np.zeros(event_loop.CLOCKS),
    )


def _simulated(requests: Requests, outcome: Outcome) -> Simulated:
    gaps = requests.output_tokens - 1
    spans_s = outcome.last_s - outcome.first_s
    tpot_s = np.where(gaps > 0, spans_s / np.maximum(gaps, 1), np.nan)
    marks = outcome.marks
    return Simulated(
        requests=requests,
        queue_s=outcome.admitted_s - requests.arrival_s,
        ttft_s=outcome.first_s - requests.arrival_s,
        tpot_s=tpot_s,
        finished_s=outcome.last_s,
        cached_tokens=outcome.cached,
        preemptions=outcome.preemptions,
        token_s=outcome.tokens_s,
        steps=int(marks[event_loop.STEPS]),
        computed_tokens=int(marks[event_loop.TOKENS]),
        busy_s=float(outcome.clocks_s[event_loop.BUSY]),
        peak_blocks=int(marks[event_loop.BLOCKS]),
        peak_running=int(marks[event_loop.SEQUENCES]),
    )
