"""The compiled loop of a fleet: engines advance side by side, requests are routed as they arrive.

Before a request is routed, every engine has made all steps that begin before its arrival and
finished those that end by then, so a router sees what has happened, and nothing else. Events are in
the order (time, outages first, arrivals in sequence). Engines are rows of stacked arrays, since a
compiled loop cannot hold a list of unlike records; their steps are those of the engine's own loop.

The compiler's cache looks at one file. What is kept on disk here includes the code of two others,
so `new_loop` makes their digest part of the cache's key.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

from hetinfer.fleet import routing
from hetinfer.fleet.routing import View, choose_engine
from hetinfer.simulation import event_loop
from hetinfer.simulation.event_loop import (
    AFTER,
    ANSWERING,
    BEFORE,
    BUSY,
    CLOCK,
    COAST_CONTEXT,
    COASTING,
    CONTENT,
    FINISHED,
    NEXT,
    NOTHING,
    PREEMPTED,
    REQUEST,
    RUNNING,
    SPARE,
    STREAMED,
    USERS,
    Cost,
    Demand,
    Limits,
    Outcome,
    State,
    Stream,
    begin_step,
    finish_step,
    has_work,
    next_step_s,
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
P = ParamSpec("P")
R = TypeVar("R")
PENDING, SERVED, REJECTED, ABANDONED = range(4)  # how a request ended
NOTICE, GONE, BACK = range(3)  # what an owner does to a card
RECENT_WEIGHT = 0.05  # of the newest TTFT in an engine's recent one: about its last twenty requests


class Engines(NamedTuple):
    """Every engine's state and coefficients, one row an engine; `blocks` lie end to end."""

    slots: Ints
    blocks: Ints
    first_block: Ints
    holder: npt.NDArray[np.int32]
    running: Ints
    coast: Ints
    preempted: Ints
    spare: Ints
    limits: Ints
    cost: Floats
    stream: Floats
    stalls_s: Floats
    receive_s: Floats
    in_step: Ints
    due_s: Floats


class Queues(NamedTuple):
    """What each engine was sent, in order, and what became of it: rows (n_engines, capacity)."""

    sent: Ints
    sent_tokens: Ints
    request: Ints
    ready_s: Floats
    prompt: Ints
    output: Ints
    first_key: Ints
    admitted_s: Floats
    first_s: Floats
    last_s: Floats
    cached: Ints
    preemptions: Ints
    marks: Ints
    clocks_s: Floats


class Traffic(NamedTuple):
    """Requests by arrival; `first_key` numbers a repeated text's blocks, NOTHING for a new one."""

    arrival_s: Floats
    prompt: Ints
    output: Ints
    first_key: Ints
    service: Ints


class Outages(NamedTuple):
    """What owners do, by time: which engine, and one of NOTICE, GONE and BACK."""

    time_s: Floats
    engine: Ints
    kind: Ints


class Fates(NamedTuple):
    """How each request ended, on which engine, as which entry of its queue, at which try."""

    status: Ints
    engine: Ints
    entry: Ints
    tries: Ints
    retry: Ints
    no_tokens_s: Floats


class Fleet(NamedTuple):
    """Everything that a run reads and changes."""

    engines: Engines
    queues: Queues
    traffic: Traffic
    fates: Fates
    seen: View


def part(function: Callable[P, R]) -> Callable[P, R]:
    """The function, compiled as a part of the loop that is kept on disk with it.

    Inlined: a fleet is passed as some three hundred words, which would take half the time.
    """
    options: dict[str, Any] = {"error_model": "numpy", "_nrt": False, "forceinline": True}
    return cast(Callable[P, R], numba.njit(**options)(function))


@part
def state_of(engines: Engines, engine: int) -> State:
    """Views of one engine's part of the stacked arrays."""
    low, high = engines.first_block[engine], engines.first_block[engine + 1]
    return State(
        engines.slots[engine],
        engines.blocks[low:high],
        engines.holder[engine],
        engines.running[engine],
        engines.coast[engine],
        engines.preempted[engine],
        engines.spare[engine],
    )


@part
def limits_of(engines: Engines, engine: int) -> Limits:
    """One engine's limits."""
    row = engines.limits[engine]
    return Limits(row[0], row[1], row[2], row[3], row[4] != 0, row[5])


@part
def demand_of(queues: Queues, engine: int) -> Demand:
    """What one engine was sent so far."""
    sent = queues.sent[engine]
    return Demand(
        queues.ready_s[engine, :sent],
        queues.prompt[engine, :sent],
        queues.output[engine, :sent],
        queues.first_key[engine, :sent],
        0,
    )


@part
def outcome_of(queues: Queues, fates: Fates, engine: int) -> Outcome:
    """Where one engine's loop writes; token times are not kept."""
    return Outcome(
        queues.admitted_s[engine],
        queues.first_s[engine],
        queues.last_s[engine],
        queues.cached[engine],
        queues.preemptions[engine],
        queues.first_key[engine],
        fates.no_tokens_s,
        queues.marks[engine],
        queues.clocks_s[engine],
    )


@part
def note_ends(fleet: Fleet, engine: int, spare: int) -> None:
    """Tell the router of the requests whose slots were given back since there were `spare`."""
    engines, queues, traffic, fates, view = fleet
    for place in range(spare, queues.marks[engine, SPARE]):
        entry = engines.slots[engine, engines.spare[engine, place], REQUEST]
        request = queues.request[engine, entry]
        fates.status[request] = SERVED
        tokens = traffic.prompt[request] + view.answer_tokens[traffic.service[request]]
        view.outstanding_tokens[engine] -= tokens
        ttft_s = queues.first_s[engine, entry] - traffic.arrival_s[request]
        view.recent_ttft_s[engine] += RECENT_WEIGHT * (ttft_s - view.recent_ttft_s[engine])


@part
def advance_engine(fleet: Fleet, engine: int, until_s: float) -> None:
    """Make one engine's steps that begin before a time, and finish those that end by it."""
    engines, queues, view = fleet.engines, fleet.queues, fleet.seen
    state, limits = state_of(engines, engine), limits_of(engines, engine)
    demand, outcome = demand_of(queues, engine), outcome_of(queues, fleet.fates, engine)
    c, s = engines.cost[engine], engines.stream[engine]
    cost = Cost(c[0], c[1], c[2], c[3], c[4], c[5])
    stream = Stream(s[0], s[1], engines.stalls_s[engine])
    marks, clocks_s = outcome.marks, outcome.clocks_s
    while True:
        if engines.in_step[engine]:
            if clocks_s[CLOCK] > until_s:
                engines.due_s[engine] = clocks_s[CLOCK]
                break
            spare = marks[SPARE]
            finish_step(state, limits, outcome, clocks_s[STREAMED])
            engines.in_step[engine] = 0
            if marks[SPARE] > spare:
                note_ends(fleet, engine, spare)
        if not has_work(demand, marks):
            engines.due_s[engine] = np.inf
            break
        start_s = next_step_s(demand, marks, clocks_s[CLOCK])
        if start_s >= until_s:
            engines.due_s[engine] = start_s
            break
        clocks_s[CLOCK] = start_s
        begin_step(state, demand, limits, cost, stream, outcome)
        engines.in_step[engine] = 1
    view.outstanding[engine] = queues.sent[engine] - marks[FINISHED]
    view.waiting_tokens[engine] = queues.sent_tokens[engine] - marks[ANSWERING]


@part
def advance_all(fleet: Fleet, until_s: float) -> None:
    """Advance every engine that has something to do by a time."""
    due_s = fleet.engines.due_s
    for engine in range(due_s.size):
        if due_s[engine] <= until_s:
            advance_engine(fleet, engine, until_s)


@part
def send(fleet: Fleet, engine: int, request: int, now_s: float) -> int:
    """Put a request into an engine's queue; its entry there."""
    engines, queues, traffic, _, view = fleet
    entry = queues.sent[engine]
    prompt = traffic.prompt[request]
    row, size = engines.limits[engine, 5], engines.limits[engine, 1]
    key = traffic.first_key[request]
    # a new text's blocks get keys that go on to those of its answer, and none but it can find them
    queues.first_key[engine, entry] = key if key != NOTHING else -1 - entry * row - prompt // size
    queues.request[engine, entry] = request
    queues.ready_s[engine, entry] = now_s + engines.receive_s[engine]
    queues.prompt[engine, entry] = prompt
    queues.output[engine, entry] = traffic.output[request]
    queues.sent[engine] = entry + 1
    queues.sent_tokens[engine] += prompt
    if not engines.in_step[engine]:
        start_s = max(queues.clocks_s[engine, CLOCK], queues.ready_s[engine, entry])
        engines.due_s[engine] = min(engines.due_s[engine], start_s)
    view.outstanding[engine] += 1
    view.waiting_tokens[engine] += prompt
    view.outstanding_tokens[engine] += prompt + view.answer_tokens[traffic.service[request]]
    return int(entry)


@part
def route(fleet: Fleet, policy: int, request: int, now_s: float) -> None:
    """Let the policy choose an engine for a request, and send it there."""
    traffic, fates = fleet.traffic, fleet.fates
    engine = choose_engine(policy, fleet.seen, traffic.service[request], traffic.prompt[request])
    fates.engine[request] = engine
    if engine == NOTHING:
        fates.status[request] = REJECTED
        return
    fates.tries[request] += 1
    fates.entry[request] = send(fleet, engine, request, now_s)


@part
def take_back(fleet: Fleet, engine: int, most_tries: int, now_s: float) -> int:
    """Stop an engine at once: what it had not finished is to be retried; how many that are."""
    queues, fates = fleet.queues, fleet.fates
    lost = 0
    for entry in range(queues.sent[engine]):
        request = queues.request[engine, entry]
        here = fates.engine[request] == engine and fates.entry[request] == entry
        if not here or fates.status[request] != PENDING:
            continue
        if fates.tries[request] < most_tries:
            fates.retry[lost] = request
            lost += 1
        else:
            fates.status[request] = ABANDONED
    restart(fleet, engine, now_s)
    return lost


@part
def restart(fleet: Fleet, engine: int, now_s: float) -> None:
    """Empty an engine: nothing queued, every slot spare, every block free and without content."""
    engines, queues, view = fleet.engines, fleet.queues, fleet.seen
    marks, clocks_s = queues.marks[engine], queues.clocks_s[engine]
    if engines.in_step[engine]:
        clocks_s[BUSY] -= clocks_s[CLOCK] - now_s
        clocks_s[CLOCK] = now_s
    engines.in_step[engine] = 0
    engines.due_s[engine] = np.inf
    for mark in (RUNNING, PREEMPTED, COASTING, COAST_CONTEXT):
        marks[mark] = 0
    marks[NEXT] = marks[FINISHED] = queues.sent[engine]
    marks[ANSWERING] = queues.sent_tokens[engine]
    marks[SPARE] = engines.limits[engine, 2]
    for slot in range(engines.limits[engine, 2]):
        engines.spare[engine, slot] = engines.limits[engine, 2] - 1 - slot
    low, high = engines.first_block[engine], engines.first_block[engine + 1]
    free_blocks(engines.blocks[low:high])
    engines.holder[engine, :] = NOTHING
    view.outstanding[engine] = view.waiting_tokens[engine] = 0
    view.outstanding_tokens[engine] = 0.0


@part
def free_blocks(blocks: Ints) -> None:
    """Put every block into the free list, in order, as in an engine that has just started."""
    end = blocks.shape[0] - 1
    for block in range(end + 1):
        blocks[block, BEFORE] = block - 1
        blocks[block, AFTER] = block + 1
        blocks[block, USERS] = 0
        blocks[block, CONTENT] = NOTHING
    blocks[0, BEFORE] = end
    blocks[end, AFTER] = 0
    blocks[end, USERS] = end


Loop = Callable[[Fleet, Outages, int, int], None]


def new_loop(digest: str) -> Loop:
    """The fleet's loop, compiled at its first call and kept on disk under the digest's name."""

    def run_fleet(fleet: Fleet, outages: Outages, policy: int, most_tries: int) -> None:
        """Serve all traffic; owners' notices, leavings and returns come between."""
        if digest == "":  # never: it is named so that the cache's key holds it
            return
        traffic, fates = fleet.traffic, fleet.fates
        request = outage = 0
        while request < traffic.arrival_s.size or outage < outages.time_s.size:
            now_s = np.inf
            if request < traffic.arrival_s.size:
                now_s = traffic.arrival_s[request]
            if outage == outages.time_s.size or now_s < outages.time_s[outage]:
                advance_all(fleet, now_s)
                route(fleet, policy, request, now_s)
                request += 1
                continue
            now_s, engine = outages.time_s[outage], outages.engine[outage]
            advance_all(fleet, now_s)
            fleet.seen.accepts[engine] = outages.kind[outage] == BACK
            lost = 0
            if outages.kind[outage] == GONE:
                lost = take_back(fleet, engine, most_tries, now_s)
            for place in range(lost):
                route(fleet, policy, fates.retry[place], now_s)
            outage += 1
        advance_all(fleet, np.inf)

    options: dict[str, Any] = {"cache": True, "error_model": "numpy", "_nrt": False}
    return cast(Loop, numba.njit(**options)(run_fleet))


def code_digest() -> str:
    """SHA-256 of the source that the loop is compiled from beside this file's."""
    sources = [Path(str(module.__file__)).read_bytes() for module in (event_loop, routing)]
    return hashlib.sha256(b"".join(sources)).hexdigest()


run_fleet = new_loop(code_digest())
