"""Routing policies: plain functions of what a router can see, compiled with the engines.

A policy gets the view of the fleet, the request's service class and its prompt length, and names an
engine, or NOTHING where none is open. It never sees how long the answer will be: work in flight is
counted with the mean answer of each class. Tiers are numbered, 0 being the preferred one.

A fluid optimum, which no policy can beat, is in `bound.py`.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hetinfer.errors import InputError
from hetinfer.simulation.event_loop import NOTHING, compiled

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
ANY_TIER = -1


class View(NamedTuple):
    """What a router knows: arrays (n_engines,), or (n_classes,), or (n_classes, n_engines).

    Changing: `accepts` (1 when an engine takes requests), `outstanding` requests, `waiting_tokens`
    of prompts without a first token yet, `outstanding_tokens` (prompts and mean answers in flight),
    `recent_ttft_s` of requests that ended lately. Fixed: `tier`, `tokens_per_s` when saturated,
    `prefill_s_per_token`, `step_s` of a step with little in it, `kv_tokens`, cost and carbon of a
    token, each class's `home_tier`, `target_s` for TTFT and mean answer, and the most requests in
    flight at which an engine keeps a class's targets (0: never).
    """

    accepts: Ints
    outstanding: Ints
    waiting_tokens: Ints
    outstanding_tokens: Floats
    recent_ttft_s: Floats
    tier: Ints
    tokens_per_s: Floats
    prefill_s_per_token: Floats
    step_s: Floats
    kv_tokens: Ints
    usd_per_mtoken: Floats
    g_per_mtoken: Floats
    home_tier: Ints
    target_s: Floats
    answer_tokens: Floats
    most_outstanding: Floats


Policy = Callable[[View, int, int], int]


@compiled
def least_work(view: View, tier: int) -> int:
    """The open engine of a tier with the least outstanding work in seconds of its own speed."""
    best, least = NOTHING, np.inf
    for engine in range(view.accepts.size):
        if view.accepts[engine] and (tier == ANY_TIER or view.tier[engine] == tier):
            work_s = (view.outstanding_tokens[engine] + 1.0) / view.tokens_per_s[engine]
            if work_s < least:
                best, least = engine, work_s
    return best


@compiled
def predicted_ttft_s(view: View, engine: int, service: int, prompt_tokens: int) -> float:
    """When a request's first token may be expected, in seconds from now.

    A step, the prefill of the prompts before it and its own, and, where the work in flight would
    overflow the KV cache, the time to serve the excess.
    """
    prefill = (view.waiting_tokens[engine] + prompt_tokens) * view.prefill_s_per_token[engine]
    needed = view.outstanding_tokens[engine] + prompt_tokens + view.answer_tokens[service]
    excess = max(0.0, needed - view.kv_tokens[engine])
    return float(view.step_s[engine] + prefill + excess / view.tokens_per_s[engine])


@compiled
def keeps_targets(view: View, engine: int, service: int, prompt_tokens: int) -> bool:
    """Whether an open engine may be expected to keep the class's targets with one request more."""
    if not view.accepts[engine]:
        return False
    if view.outstanding[engine] + 1 > view.most_outstanding[service, engine]:
        return False
    expected_s = predicted_ttft_s(view, engine, service, prompt_tokens)
    return bool(expected_s <= view.target_s[service])


@compiled
def one_tier(view: View, service: int, prompt_tokens: int) -> int:
    """Only the engines of tier 0, whichever has the least work; the others stand idle."""
    return least_work(view, 0)


@compiled
def static_by_class(view: View, service: int, prompt_tokens: int) -> int:
    """Each class to its own tier; elsewhere only while none of that tier is open."""
    engine = least_work(view, view.home_tier[service])
    return engine if engine != NOTHING else least_work(view, ANY_TIER)


@compiled
def overflow(view: View, service: int, prompt_tokens: int) -> int:
    """Tier 0 while one of its engines keeps the targets, then the least work anywhere."""
    best, least = NOTHING, np.inf
    for engine in range(view.accepts.size):
        if view.tier[engine] == 0 and keeps_targets(view, engine, service, prompt_tokens):
            work_s = view.outstanding_tokens[engine] / view.tokens_per_s[engine]
            if work_s < least:
                best, least = engine, work_s
    return best if best != NOTHING else least_work(view, ANY_TIER)


@compiled
def weighted_least_work(view: View, service: int, prompt_tokens: int) -> int:
    """The least outstanding work weighted by speed, in all tiers alike."""
    return least_work(view, ANY_TIER)


@compiled
def slo_aware(view: View, service: int, prompt_tokens: int) -> int:
    """The least predicted TTFT among the engines that keep the targets, else among all."""
    best, least, best_keeps = NOTHING, np.inf, False
    for engine in range(view.accepts.size):
        if not view.accepts[engine]:
            continue
        keeps = keeps_targets(view, engine, service, prompt_tokens)
        expected_s = predicted_ttft_s(view, engine, service, prompt_tokens)
        if (keeps and not best_keeps) or (keeps == best_keeps and expected_s < least):
            best, least, best_keeps = engine, expected_s, keeps
    return best


@compiled
def first_by(view: View, rank: Floats, service: int, prompt_tokens: int) -> int:
    """The engine of least rank that keeps the targets (least work among equals), else the safest.

    Safest: where the targets cannot be kept, the one with the least predicted TTFT among engines
    that could keep them idle, so that a class is not sent to cards that never serve it in time.
    """
    best, least, least_s = NOTHING, np.inf, np.inf
    for engine in range(view.accepts.size):
        if keeps_targets(view, engine, service, prompt_tokens):
            work_s = view.outstanding_tokens[engine] / view.tokens_per_s[engine]
            if rank[engine] < least or (rank[engine] == least and work_s < least_s):
                best, least, least_s = engine, rank[engine], work_s
    return best if best != NOTHING else safest(view, service)


@compiled
def safest(view: View, service: int) -> int:
    """The least work among open engines that ever keep the class's targets, else among all."""
    best, least = NOTHING, np.inf
    for engine in range(view.accepts.size):
        if view.accepts[engine] and view.most_outstanding[service, engine] >= 1:
            work_s = (view.outstanding_tokens[engine] + 1.0) / view.tokens_per_s[engine]
            if work_s < least:
                best, least = engine, work_s
    return best if best != NOTHING else least_work(view, ANY_TIER)


@compiled
def cost_first(view: View, service: int, prompt_tokens: int) -> int:
    """The cheapest tokens among the engines that keep the targets."""
    return first_by(view, view.usd_per_mtoken, service, prompt_tokens)


@compiled
def carbon_aware(view: View, service: int, prompt_tokens: int) -> int:
    """The cleanest tokens among the engines that keep the targets."""
    return first_by(view, view.g_per_mtoken, service, prompt_tokens)


@compiled
def class_overflow(view: View, service: int, prompt_tokens: int) -> int:
    """Each class to its own tier while that has room, then to the other, else home to wait.

    Room is fewer requests in flight than keep the class's targets: all that a proxy before the
    servers can count. What `gateway.py` configures does this, by class where this counts them all.
    """
    best, least, best_home = NOTHING, np.inf, False
    for engine in range(view.accepts.size):
        in_flight = view.outstanding[engine] + 1
        if not view.accepts[engine] or in_flight > view.most_outstanding[service, engine]:
            continue
        home = view.tier[engine] == view.home_tier[service]
        work_s = view.outstanding_tokens[engine] / view.tokens_per_s[engine]
        if (home and not best_home) or (home == best_home and work_s < least):
            best, least, best_home = engine, work_s, home
    return best if best != NOTHING else static_by_class(view, service, prompt_tokens)


@compiled
def choose_engine(policy: int, view: View, service: int, prompt_tokens: int) -> int:
    """The engine that the policy of that number names; numbers are the order of `POLICIES`."""
    if policy == 0:
        return one_tier(view, service, prompt_tokens)
    if policy == 1:
        return static_by_class(view, service, prompt_tokens)
    if policy == 2:
        return overflow(view, service, prompt_tokens)
    if policy == 3:
        return weighted_least_work(view, service, prompt_tokens)
    if policy == 4:
        return slo_aware(view, service, prompt_tokens)
    if policy == 5:
        return cost_first(view, service, prompt_tokens)
    if policy == 6:
        return carbon_aware(view, service, prompt_tokens)
    return class_overflow(view, service, prompt_tokens)


POLICIES: Mapping[str, Policy] = {
    "one-tier": one_tier,
    "static": static_by_class,
    "overflow": overflow,
    "least-work": weighted_least_work,
    "slo-aware": slo_aware,
    "cost-first": cost_first,
    "carbon-aware": carbon_aware,
    "class-overflow": class_overflow,
}
BY_CLASS = ("static", "class-overflow")  # policies that need each class's home tier


def policy_number(name: str) -> int:
    """The policy's number for `choose_engine`; InputError lists the policies there are."""
    if name not in POLICIES:
        raise InputError(
            "unknown policy",
            got=repr(name),
            expected=f"one of {', '.join(POLICIES)}",
            where="hetinfer.fleet.routing",
            do="name one of these",
        )
    return list(POLICIES).index(name)
