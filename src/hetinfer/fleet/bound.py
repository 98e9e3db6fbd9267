"""A floor under every policy: the fluid optimum, by linear programme, over engine time alone.

Serving a request takes an engine at least some seconds of steps, however well it is batched. With
the step time's symbols (`simulation.step_time`), N steps that compute T tokens in all take at least

    N launch + N weights cos(a) + T compute sin(a) + T communication + D sequence + K context

for any angle a, since sqrt(x^2 + y^2) >= x cos(a) + y sin(a). A request with prompt P and answer O
computes T = P + O - 1 tokens, gives D = O, and reads K of context; it needs N >= O / sequences
steps of the batch, and N >= K / cache, since what a step reads must lie in the cache. Both hold for
any share of a step, so the sum over requests is a bound, whatever the policy, the mix or the
targets: no fleet serves the demand with fewer engine-hours. Waiting, targets and whole cards are
what lies between this and a plan. It supposes that no prompt is cached.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog

from hetinfer.errors import InputError
from hetinfer.fleet.offers import Offer
from hetinfer.fleet.planning import Demand
from hetinfer.simulation.engine import Engine
from hetinfer.workload import Lengths

Floats = npt.NDArray[np.float64]
ANGLES = np.linspace(0.0, np.pi / 2, 5)


@dataclass(frozen=True)
class Bound:
    """The fluid optimum: USD an hour, and fractional copies of each offer, (n_offers,)."""

    usd_per_h: float
    copies: Floats


def least_seconds(engine: Engine, lengths: Lengths) -> Floats:
    """Engine seconds that a mean request takes at least, one bound for each angle; (n_angles,)."""
    prompt = lengths.prompt_tokens.astype(float)
    answer = lengths.output_tokens.astype(float)
    step = engine.step_time
    tokens = float((prompt + answer - 1).mean())
    emitted = float(answer.mean())
    # the k-th further token reads the prompt and the k tokens before it
    context = float(((answer - 1) * (prompt + answer / 2)).mean())
    steps = max(emitted / engine.max_sequences, context / engine.kv_tokens)
    fixed = (
        steps * step.launch_s
        + tokens * step.communication_s
        + emitted * step.sequence_s
        + context * step.context_s
    )
    batch = steps * step.weights_s * np.cos(ANGLES) + tokens * step.compute_s * np.sin(ANGLES)
    return np.asarray(fixed + batch)


def fluid_bound(demand: Demand, offers: Sequence[Offer]) -> Bound:
    """The least USD an hour of fractional copies whose time suffices for every hour's demand.

    The best of the bounds by one angle common to all engines. InputError when the caps allow too
    little even so.
    """
    most = [float(offer.most) for offer in offers]
    seconds = _least_seconds(demand, offers)
    bounds = [_bound_at(demand, offers, one, most) for one in seconds]
    found = [bound for bound in bounds if bound is not None]
    if len(found) < len(bounds):
        raise InputError(
            "more demand than all caps allow",
            got=f"{demand.requests_per_s.sum(axis=0).max():.1f} requests/s at the peak",
            expected="what the offers can serve however well they are batched",
            where="the bound",
            do="raise the caps",
        )
    return max(found, key=lambda bound: bound.usd_per_h)


def suffices(demand: Demand, offers: Sequence[Offer], counts: Sequence[int]) -> bool:
    """Whether the time of so many copies could suffice; if not, no policy serves the demand."""
    most = [float(count) for count in counts]
    seconds = _least_seconds(demand, offers)
    return all(_bound_at(demand, offers, one, most) is not None for one in seconds)


def _bound_at(
    demand: Demand, offers: Sequence[Offer], seconds: Floats, most: Sequence[float]
) -> Bound | None:
    n_offers, n_classes = seconds.shape
    peaks = _undominated(demand.requests_per_s)
    n_hours = peaks.shape[1]
    n = n_offers + n_offers * n_classes * n_hours  # copies, then x[k, c, t]
    x = n_offers + np.arange(n - n_offers).reshape(n_offers, n_classes, n_hours)
    served = np.zeros((n_classes, n_hours, n))
    room = np.zeros((n_offers, n_hours, n))
    for c in range(n_classes):
        for t in range(n_hours):
            served[c, t, x[:, c, t]] = 1.0
    for k, offer in enumerate(offers):
        for t in range(n_hours):
            room[k, t, x[k, :, t]] = seconds[k]
            room[k, t, k] = -offer.available_frac
    usd = np.zeros(n)
    usd[:n_offers] = [offer.usd_per_h for offer in offers]
    result = linprog(
        usd,
        A_ub=room.reshape(-1, n),
        b_ub=np.zeros(n_offers * n_hours),
        A_eq=served.reshape(-1, n),
        b_eq=peaks.reshape(-1),
        bounds=[(0.0, cap) for cap in most] + [(0.0, None)] * (n - n_offers),
    )
    return None if result.x is None else Bound(float(result.fun), result.x[:n_offers])


def _least_seconds(demand: Demand, offers: Sequence[Offer]) -> Floats:
    """By angle, offer and class, the middle angles first: they say most."""
    seconds = np.array(
        [[least_seconds(o.engine, s.lengths) for s in demand.classes] for o in offers]
    )
    middle = np.argsort(np.abs(ANGLES - np.pi / 4), kind="stable")
    return np.asarray(np.moveaxis(seconds, -1, 0)[middle])


def _undominated(rates: Floats) -> Floats:
    """The hours of which no other asks as much of every class: the only ones that can bind."""
    unique = np.unique(rates, axis=1)
    above = (unique[:, :, np.newaxis] >= unique[:, np.newaxis, :]).all(axis=0)
    others = above.sum(axis=0) - 1  # each is at least itself
    return np.asarray(unique[:, others == 0])
