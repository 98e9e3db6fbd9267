"""How many of each configuration: the cheapest or cleanest fleet for a day's demand.

A mixed-integer programme over n[k], copies of offer k, and x[k, c, t], the requests per second of
class c that they serve in hour t:

    least   sum over k of n[k] f[k] + sum over k, c, t of x[k, c, t] / r[k, c] v[k]
    so that sum over k of x[k, c, t] = d[c, t] (1 + reserve[c])
            sum over c of x[k, c, t] / r[k, c] <= a[k] n[k],   n[k] <= most[k]

with r the capacity within the class's targets, a the availability, f what a copy costs all day and
v what an hour of work adds. Capacities of one class alone say nothing of classes that share an
engine, nor of what pooling gives: a plan is unchecked until `checking.py` has simulated it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import coo_array

from hetinfer.errors import InputError
from hetinfer.fleet.demand import ServiceClass
from hetinfer.fleet.offers import Capacities, Offer

Floats = npt.NDArray[np.float64]
Objective = Literal["cost", "carbon", "weighted"]
OBJECTIVES: tuple[Objective, ...] = ("cost", "carbon", "weighted")
G_PER_KG = 1000.0
RELATIVE_GAP = 1e-6  # of the solver: plans closer than this are equally good
TIE_WEIGHT = 1e-6  # of the other objective, so that equal plans are told apart the same way always
TIME_LIMIT_S = 20.0


@dataclass(frozen=True)
class Demand:
    """A day of classes: `requests_per_s` is (n_classes, n_hours), the mean rate of each hour."""

    classes: tuple[ServiceClass, ...]
    requests_per_s: Floats


@dataclass(frozen=True)
class Aim:
    """What is made least: `cost` (USD), `carbon` (g), or both with a price on a kg of CO2e.

    `reserve_frac` is by class: by how much more than the demand is planned for (below 0: less).
    """

    objective: Objective = "cost"
    usd_per_kg: float = 0.0
    reserve_frac: tuple[float, ...] = ()


@dataclass(frozen=True)
class Plan:
    """A fleet: copies of each offer, how classes are spread, and what it costs; USD and g an hour.

    `spread_requests_per_s` has shape (n_offers, n_classes, n_hours). `checked` is True only after
    a simulation kept every target.
    """

    offers: tuple[Offer, ...]
    demand: Demand
    counts: tuple[int, ...]
    spread_requests_per_s: Floats
    usd_per_h: float
    g_per_h: float
    aim: Aim
    checked: bool = False

    @property
    def copies(self) -> tuple[tuple[str, int], ...]:
        """Names of the configurations it holds, and how many of each."""
        pairs = zip(self.offers, self.counts, strict=True)
        return tuple((offer.name, count) for offer, count in pairs if count)

    @property
    def fleet(self) -> str:
        """The fleet in words: `2 of 1x H100, 5 of 1x 4090`."""
        return ", ".join(f"{count} of {name}" for name, count in self.copies)

    @property
    def tiers(self) -> frozenset[int]:
        """The tiers that it holds cards of."""
        return frozenset(o.tier for o, n in zip(self.offers, self.counts, strict=True) if n)


def plan_fleet(
    demand: Demand, offers: Sequence[Offer], capacities: Capacities, aim: Aim | None = None
) -> Plan:
    """The best fleet for a demand, unchecked.

    InputError for a demand or aim that is none, and when nothing fits: it names the class that no
    offer serves within its targets, or the cap that binds and how much of the peak fits.
    """
    aim = aim or Aim()
    wanted = _wanted(check_demand(demand), aim)
    rates = capacities.requests_per_s
    _check_servable(demand, offers, rates)
    columns = _columns(rates, wanted)
    held, worked = _weights(offers, aim, wanted.shape[1])
    work = 1.0 / rates[columns[0], columns[1]]
    objective = np.concatenate([held, worked[columns[0]] * work])
    n_offers = len(offers)
    result = milp(
        objective,
        integrality=np.concatenate([np.ones(n_offers), np.zeros(work.size)]),
        bounds=_bounds(offers, work.size),
        constraints=_constraints(offers, columns, work, wanted),
        options={"mip_rel_gap": RELATIVE_GAP, "time_limit": TIME_LIMIT_S},
    )
    if result.x is None:
        raise _nothing_fits(demand, offers, rates, wanted)
    counts = tuple(int(n) for n in np.round(result.x[:n_offers]))
    spread = np.zeros((n_offers, *wanted.shape))
    spread[columns] = result.x[n_offers:]
    return price_plan(Plan(tuple(offers), demand, counts, spread, 0.0, 0.0, aim), capacities)


def price_plan(plan: Plan, capacities: Capacities) -> Plan:
    """The plan with its USD and g an hour; carbon by how busy the demand keeps the copies.

    A copy works for the share of its capacity that it serves, the reserve left out, at most always.
    """
    n_hours = plan.demand.requests_per_s.shape[1]
    rates = capacities.requests_per_s[:, :, np.newaxis]
    shares = np.divide(
        plan.spread_requests_per_s, rates, out=np.zeros_like(plan.spread_requests_per_s),
        where=rates > 0,
    )  # fmt: skip
    demanded = np.array(plan.aim.reserve_frac or (0.0,) * shares.shape[1]) + 1
    work = (shares / demanded[:, np.newaxis]).sum(axis=(1, 2)) / n_hours
    busy = np.minimum(work, plan.counts)  # copies at work, on average
    usd = sum(o.usd_per_h * n for o, n in zip(plan.offers, plan.counts, strict=True))
    g = sum(
        o.idle_g_per_h * n + (o.busy_g_per_h - o.idle_g_per_h) * copies
        for o, n, copies in zip(plan.offers, plan.counts, busy, strict=True)
    )
    return Plan(
        plan.offers, plan.demand, plan.counts, plan.spread_requests_per_s, float(usd), float(g),
        plan.aim, plan.checked,
    )  # fmt: skip


def plan_table(plan: Plan) -> pd.DataFrame:
    """One row an offer with copies: configuration, copies, usd_per_h, its share of each class."""
    total = plan.spread_requests_per_s.sum(axis=(0, 2))
    rows = []
    for k, (offer, count) in enumerate(zip(plan.offers, plan.counts, strict=True)):
        if count:
            served = plan.spread_requests_per_s[k].sum(axis=1)
            shares = {
                f"{service.name}_frac": float(served[c] / total[c]) if total[c] else 0.0
                for c, service in enumerate(plan.demand.classes)
            }
            row = {"configuration": offer.name, "copies": count}
            rows.append(row | {"usd_per_h": offer.usd_per_h * count} | shares)
    return pd.DataFrame(rows)


def check_demand(demand: Demand) -> Demand:
    """The demand itself when it can be planned for; InputError otherwise."""
    rates = demand.requests_per_s
    known = rates.ndim == 2 and rates.shape[0] == len(demand.classes) and rates.size > 0
    if not known or not (np.isfinite(rates).all() and (rates >= 0).all() and rates.sum() > 0):
        expected = f"rates ({len(demand.classes)}, hours), none negative, one above 0"
        raise _plan_error("demand", f"shape {rates.shape}, sum {rates.sum():g}", expected)
    return demand


def _wanted(demand: Demand, aim: Aim) -> Floats:
    if aim.objective not in OBJECTIVES:
        raise _plan_error("objective", repr(aim.objective), f"one of {', '.join(OBJECTIVES)}")
    reserve = np.array(aim.reserve_frac or (0.0,) * len(demand.classes))
    if reserve.shape != (len(demand.classes),) or not (reserve > -1).all() or aim.usd_per_kg < 0:
        got = f"{aim.reserve_frac}, {aim.usd_per_kg:g} USD per kg"
        raise _plan_error("reserve", got, "a share above -1 for each class, a price of 0 or more")
    return np.asarray(demand.requests_per_s * (1 + reserve)[:, np.newaxis])


def _columns(rates: Floats, wanted: Floats) -> tuple[npt.NDArray[np.int64], ...]:
    """Offer, class and hour of every x that may be above 0."""
    may = (rates[:, :, np.newaxis] > 0) & (wanted[np.newaxis] > 0)
    return tuple(np.nonzero(may))


def _weights(offers: Sequence[Offer], aim: Aim, n_hours: int) -> tuple[Floats, Floats]:
    """What a copy adds to the objective by being held, and by each hour of work, per hour."""
    usd = np.array([offer.usd_per_h for offer in offers])
    idle_kg = np.array([offer.idle_g_per_h for offer in offers]) / G_PER_KG
    work_kg = np.array([o.busy_g_per_h - o.idle_g_per_h for o in offers]) / G_PER_KG
    per_kg = {"cost": TIE_WEIGHT, "carbon": 1.0, "weighted": aim.usd_per_kg}[aim.objective]
    per_usd = TIE_WEIGHT if aim.objective == "carbon" else 1.0
    return per_usd * usd + per_kg * idle_kg, per_kg * work_kg / n_hours


def _bounds(offers: Sequence[Offer], n_spread: int) -> tuple[Floats, Floats]:
    upper = np.concatenate([[float(offer.most) for offer in offers], np.full(n_spread, np.inf)])
    return np.zeros(upper.size), upper


def _constraints(
    offers: Sequence[Offer],
    columns: tuple[npt.NDArray[np.int64], ...],
    work: Floats,
    wanted: Floats,
) -> list[LinearConstraint]:
    k, c, t = columns
    n_offers, (n_classes, n_hours) = len(offers), wanted.shape
    x = n_offers + np.arange(work.size)
    width = n_offers + work.size
    served = coo_array((np.ones(work.size), (c * n_hours + t, x)), (n_classes * n_hours, width))
    copies = np.repeat(np.arange(n_offers), n_hours)
    there = np.repeat([offer.available_frac for offer in offers], n_hours)
    room = coo_array(
        (
            np.concatenate([work, -there]),
            (
                np.concatenate([k * n_hours + t, np.arange(n_offers * n_hours)]),
                np.concatenate([x, copies]),
            ),
        ),
        (n_offers * n_hours, width),
    )
    demand = wanted.reshape(-1)
    return [
        LinearConstraint(served.tocsr(), demand, demand),
        LinearConstraint(room.tocsr(), -np.inf, 0.0),
    ]


def _check_servable(demand: Demand, offers: Sequence[Offer], rates: Floats) -> None:
    if not offers:
        raise _plan_error("offers", "none", "at least one configuration")
    for c, service in enumerate(demand.classes):
        if demand.requests_per_s[c].any() and not (rates[:, c] > 0).any():
            raise _plan_error(
                f"class {service.name} is served by nothing",
                ", ".join(offer.name for offer in offers),
                f"one that keeps TTFT {service.ttft_target_s:g} s and TPOT "
                f"{service.tpot_target_s:g} s for one request in a hundred missed",
            )


def _nothing_fits(
    demand: Demand, offers: Sequence[Offer], rates: Floats, wanted: Floats
) -> InputError:
    """Which cap binds: the share of the demand that all copies allowed can serve in the worst hour.

    Each class alone first: the one of which least fits alone, else the hour in which all meet.
    """
    most = np.array([offer.most * offer.available_frac for offer in offers])
    alone = most @ rates
    peaks = wanted.max(axis=1)
    caps = ", ".join(f"{offer.most} of {offer.name}" for offer in offers)
    short = np.flatnonzero(alone < peaks)
    if short.size:
        c = int(short[np.argmin(alone[short] / peaks[short])])
        name = demand.classes[c].name
        got = f"{peaks[c]:.1f} requests/s of {name} at its peak, of which {alone[c]:.1f} fit"
    else:
        hour = int(wanted.sum(axis=0).argmax())
        got = f"{wanted[:, hour].sum():.1f} requests/s of all classes in hour {hour}"
    return _plan_error("more demand than all caps allow", got, f"what {caps} can serve")


def _plan_error(what: str, got: object, expected: str) -> InputError:
    return InputError(
        what, got=got, expected=expected, where="the plan", do="change demand, targets or caps"
    )
