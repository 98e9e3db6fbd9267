"""A fleet of unlike engines behind a router, simulated request by request.

The loop is in `dispatch.py`, the policies in `routing.py`; here are the records and the checks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from hetinfer.errors import InputError
from hetinfer.fleet import dispatch
from hetinfer.fleet.availability import NO_OUTAGES, OwnerOutages
from hetinfer.fleet.demand import ServiceClass, Workload, check_workload
from hetinfer.fleet.dispatch import Engines, Fates, Outages, Queues, Traffic
from hetinfer.fleet.routing import BY_CLASS, View, policy_number
from hetinfer.simulation import event_loop
from hetinfer.simulation.engine import STALL_DRAWS, Engine, check_engine
from hetinfer.simulation.event_loop import HEAD, NOTHING
from hetinfer.simulation.step_time import cost_of, step_time_s

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
ENDS = ("pending", "served", "rejected", "abandoned")  # by number, as in `dispatch`
NEVER_FULL = np.inf


@dataclass(frozen=True)
class Member:
    """One engine of a fleet: what it is, its tier (0 is preferred), and what a router knows of it.

    `tokens_per_s` is its saturated throughput, `usd_per_mtoken` and `g_per_mtoken` the cost and
    carbon of a token there; `most_outstanding` the requests in flight, by class, at which it still
    keeps the targets (empty: any number).
    """

    name: str
    engine: Engine
    tier: int = 0
    tokens_per_s: float = 1.0
    usd_per_mtoken: float = 0.0
    g_per_mtoken: float = 0.0
    most_outstanding: tuple[float, ...] = ()


@dataclass(frozen=True)
class Router:
    """How requests are spread: a policy of `routing.POLICIES`, and its two settings.

    `home_tiers` names each class's tier for the policies of `routing.BY_CLASS`. A request that lost
    its engine is sent again until `most_tries` were made.
    """

    policy: str
    home_tiers: tuple[int, ...] = ()
    most_tries: int = 3


@dataclass(frozen=True)
class FleetRun:
    """What became of every request, in the order given, and of every engine; seconds.

    Arrays (n_requests,): `end` is a number of `ENDS`, `engine` where it ended (-1: nowhere),
    `ttft_s` and `finished_s` count from its first arrival, NaN unless served. `busy_s` and `served`
    are (n_engines,).
    """

    workload: Workload
    end: Ints
    engine: Ints
    tries: Ints
    ttft_s: Floats
    tpot_s: Floats
    finished_s: Floats
    busy_s: Floats
    served: Ints
    tokens: Ints


def simulate_fleet(
    workload: Workload,
    members: Sequence[Member],
    router: Router,
    rng: np.random.Generator | None = None,
    *,
    outages: OwnerOutages = NO_OUTAGES,
) -> FleetRun:
    """Serve a workload on a fleet whose engines all start idle, with empty caches.

    Every request ends once: served, rejected (no engine open) or abandoned (its engine was taken
    back at its last try). `rng` draws front ends' stalls, where there are any. InputError for an
    empty fleet, an unknown policy, or a request that some engine could never hold.
    """
    check_fleet(workload, members, router)
    traffic, keys = _traffic(workload, members)
    engines = _engines(workload, members, keys, rng)
    queues, fates = _queues(workload, members, router, outages), _fates(workload)
    queues.marks[:, event_loop.SPARE] = engines.limits[:, 2]
    view = _view(workload.classes, members, router)
    times = Outages(outages.time_s, outages.engine, outages.kind)
    number = policy_number(router.policy)
    fleet = dispatch.Fleet(engines, queues, traffic, fates, view)
    dispatch.load_loop()(fleet, times, number, router.most_tries)
    return _fleet_run(workload, queues, fates)


def check_fleet(workload: Workload, members: Sequence[Member], router: Router) -> None:
    """InputError unless there are engines, all can hold every request, and all classes a tier."""
    check_workload(workload)
    if not members:
        raise _fleet_error("empty fleet", "no engine", "at least one")
    for member in members:
        check_engine(member.engine, workload.requests)
        if not member.tokens_per_s > 0:
            raise _fleet_error(f"{member.name}: speed", member.tokens_per_s, "above 0")
    policy_number(router.policy)
    if router.most_tries < 1:
        raise _fleet_error("tries", router.most_tries, "at least 1")
    homes = len(router.home_tiers)
    if router.policy in BY_CLASS and homes != len(workload.classes):
        raise _fleet_error("home tiers", homes, f"one for each of {len(workload.classes)} classes")


def attainment(run: FleetRun) -> pd.DataFrame:
    """Each class's share of requests within its targets: one row a class that sent any.

    Columns: class, requests, served_frac, attainment_frac (TTFT and TPOT both in time, of all that
    were sent), wanted_frac, ttft_p99_s, tpot_p99_s, holds.
    """
    rows = []
    for number, service in enumerate(run.workload.classes):
        own = run.workload.service == number
        if not own.any():
            continue
        served = run.end[own] == dispatch.SERVED
        in_time = served & in_time_of(run, number)[own]
        ttft_s, tpot_s = run.ttft_s[own][served], run.tpot_s[own][served]
        rows.append(
            {
                "class": service.name,
                "requests": int(own.sum()),
                "served_frac": float(served.mean()),
                "attainment_frac": float(in_time.mean()),
                "wanted_frac": service.attainment_frac,
                "ttft_p99_s": _percentile(ttft_s),
                "tpot_p99_s": _percentile(tpot_s[~np.isnan(tpot_s)]),
                "holds": bool(in_time.mean() >= service.attainment_frac),
            }
        )
    return pd.DataFrame(rows)


def in_time_of(run: FleetRun, number: int) -> npt.NDArray[np.bool_]:
    """Which requests kept the targets of one class, (n_requests,); one token has no TPOT."""
    service = run.workload.classes[number]
    tpot_kept = np.isnan(run.tpot_s) | (run.tpot_s <= service.tpot_target_s)
    kept: npt.NDArray[np.bool_] = (run.ttft_s <= service.ttft_target_s) & tpot_kept
    return kept


def _percentile(latencies_s: Floats) -> float:
    return float(np.percentile(latencies_s, 99)) if latencies_s.size else float("nan")


def _traffic(workload: Workload, members: Sequence[Member]) -> tuple[Traffic, int]:
    requests = workload.requests
    size = members[0].engine.block_tokens
    _, first_use, text, uses = np.unique(
        requests.prompt_id, return_index=True, return_inverse=True, return_counts=True
    )
    repeated = uses > 1
    blocks = np.where(repeated, requests.prompt_tokens[first_use] // size, 0)
    first_key = np.where(repeated, np.cumsum(blocks) - blocks, NOTHING)[text]
    traffic = Traffic(
        requests.arrival_s,
        requests.prompt_tokens,
        requests.output_tokens,
        first_key,
        workload.service,
    )
    return traffic, int(blocks.sum())


def _engines(
    workload: Workload, members: Sequence[Member], keys: int, rng: np.random.Generator | None
) -> Engines:
    n, limits = len(members), _limits(workload, members)
    most = int(limits[:, 2].max())
    row = int(limits[0, 5])
    ends = np.cumsum(limits[:, 0] + 1)
    first_block = np.concatenate([[0], ends])
    blocks = np.empty((int(ends[-1]), 4), np.int64)
    spare = np.zeros((n, most), np.int64)
    for engine in range(n):
        dispatch.free_blocks(blocks[first_block[engine] : first_block[engine + 1]])
        sequences = limits[engine, 2]
        spare[engine, :sequences] = np.arange(sequences - 1, -1, -1)
    fronts = [member.engine.front_end for member in members]
    return Engines(
        slots=np.full((n, most, HEAD + row), NOTHING, np.int64),
        blocks=blocks,
        first_block=first_block,
        holder=np.full((n, keys), NOTHING, np.int32),
        running=np.zeros((n, most), np.int64),
        coast=np.zeros((n, most), np.int64),
        preempted=np.zeros((n, most), np.int64),
        spare=spare,
        limits=limits,
        cost=np.array([cost_of(member.engine.step_time) for member in members]),
        stream=np.array([[front.step_s, front.token_s] for front in fronts]),
        stalls_s=_stalls_s(members, rng),
        receive_s=np.array([front.receive_s for front in fronts]),
        in_step=np.zeros(n, np.int64),
        due_s=np.full(n, np.inf),
    )


def _limits(workload: Workload, members: Sequence[Member]) -> Ints:
    requests = workload.requests
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    return np.array(
        [
            [
                e.kv_tokens // e.block_tokens,
                e.block_tokens,
                min(e.max_sequences, requests.arrival_s.size),
                e.max_batched_tokens,
                int(e.prefix_caching),
                -(-longest // e.block_tokens),
            ]
            for e in (member.engine for member in members)
        ],
        np.int64,
    )


def _stalls_s(members: Sequence[Member], rng: np.random.Generator | None) -> Floats:
    fronts = [member.engine.front_end for member in members]
    if not any(front.stall_frac > 0 for front in fronts):
        return np.zeros((len(members), 1))
    if rng is None:
        raise _fleet_error("no rng", "none", "a generator to draw stalls with")
    return np.array(
        [np.where(rng.random(STALL_DRAWS) < f.stall_frac, f.stall_s, 0.0) for f in fronts]
    )


def _queues(
    workload: Workload, members: Sequence[Member], router: Router, outages: OwnerOutages
) -> Queues:
    tries = router.most_tries if outages.time_s.size else 1
    shape = (len(members), workload.service.size * tries)  # zeros take memory only where used
    ints = [np.zeros(shape, np.int64) for _ in range(6)]
    floats = [np.zeros(shape) for _ in range(4)]
    return Queues(
        sent=np.zeros(len(members), np.int64),
        sent_tokens=np.zeros(len(members), np.int64),
        request=ints[0],
        ready_s=floats[0],
        prompt=ints[1],
        output=ints[2],
        first_key=ints[3],
        admitted_s=floats[1],
        first_s=floats[2],
        last_s=floats[3],
        cached=ints[4],
        preemptions=ints[5],
        marks=np.zeros((len(members), event_loop.MARKS), np.int64),
        clocks_s=np.zeros((len(members), event_loop.CLOCKS)),
    )


def _fates(workload: Workload) -> Fates:
    n = workload.service.size
    status, engine, entry, tries, retry = (np.zeros(n, np.int64) for _ in range(5))
    return Fates(status, engine, entry, tries, retry, np.zeros(0))


def _view(classes: Sequence[ServiceClass], members: Sequence[Member], router: Router) -> View:
    n, n_classes = len(members), len(classes)
    steps = [member.engine.step_time for member in members]
    return View(
        accepts=np.ones(n, np.int64),
        outstanding=np.zeros(n, np.int64),
        waiting_tokens=np.zeros(n, np.int64),
        outstanding_tokens=np.zeros(n),
        recent_ttft_s=np.zeros(n),
        tier=np.array([member.tier for member in members], np.int64),
        tokens_per_s=np.array([member.tokens_per_s for member in members], float),
        prefill_s_per_token=np.array([s.compute_s + s.communication_s for s in steps]),
        step_s=np.array(
            [m.engine.front_end.receive_s + step_time_s(m.engine.step_time, 1) for m in members]
        ),
        kv_tokens=np.array([member.engine.kv_tokens for member in members], np.int64),
        usd_per_mtoken=np.array([member.usd_per_mtoken for member in members], float),
        g_per_mtoken=np.array([member.g_per_mtoken for member in members], float),
        home_tier=np.array(router.home_tiers or (0,) * n_classes, np.int64),
        target_s=np.array([service.ttft_target_s for service in classes], float),
        answer_tokens=np.array([service.lengths.output_tokens.mean() for service in classes]),
        most_outstanding=np.array(
            [member.most_outstanding or (NEVER_FULL,) * n_classes for member in members], float
        ).T.copy(),
    )


def _fleet_run(workload: Workload, queues: Queues, fates: Fates) -> FleetRun:
    requests = workload.requests
    served = fates.status == dispatch.SERVED
    engine = np.where(served, fates.engine, NOTHING)
    place = (fates.engine[served], fates.entry[served])
    ttft_s, tpot_s, finished_s = np.full((3, served.size), np.nan)
    first_s, last_s = queues.first_s[place], queues.last_s[place]
    ttft_s[served], finished_s[served] = first_s - requests.arrival_s[served], last_s
    gaps = requests.output_tokens[served] - 1
    tpot_s[served] = np.where(gaps > 0, (last_s - first_s) / np.maximum(gaps, 1), np.nan)
    n_engines = queues.sent.size
    tokens = (requests.prompt_tokens + requests.output_tokens)[served]
    return FleetRun(
        workload,
        fates.status,
        engine,
        fates.tries,
        ttft_s,
        tpot_s,
        finished_s,
        queues.clocks_s[:, event_loop.BUSY].copy(),
        np.bincount(engine[served], minlength=n_engines),
        np.bincount(engine[served], weights=tokens, minlength=n_engines).astype(np.int64),
    )


def _fleet_error(what: str, got: object, expected: str) -> InputError:
    return InputError(what, got=got, expected=expected, where="the fleet", do="correct it")
