"""Fleets of one tier against mixed ones, policies against each other, and what owners cost.

Every plan here is checked: its fleet kept every class's target in simulation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from hetinfer.errors import InputError
from hetinfer.fleet.availability import Ownership, draw_outages
from hetinfer.fleet.bound import fluid_bound, suffices
from hetinfer.fleet.checking import (
    Check,
    CheckSize,
    best_checked,
    checked_hours,
    none_holds,
    simulate_plan,
    simulated_check,
    tighten,
)
from hetinfer.fleet.demand import Workload, hourly_workload
from hetinfer.fleet.dispatch import ABANDONED, REJECTED
from hetinfer.fleet.offers import Capacities, Curves, Offer, capacities_of, members_of
from hetinfer.fleet.planning import Aim, Demand, Plan
from hetinfer.fleet.routing import POLICIES
from hetinfer.fleet.scenarios import (
    LATENCY_TARGETS,
    MIXES,
    classes_of,
    demand_of,
    is_latency_critical,
    offers_of,
    reprice_offer,
)
from hetinfer.fleet.simulation import attainment
from hetinfer.hardware import find_model, short_name
from hetinfer.simulation.fitted import Calibration, serving_lengths

CHEAPER_FRAC = 1e-6  # fleets whose costs are closer than this cost the same


@dataclass(frozen=True)
class Case:
    """One model under one mix and latency target: demand, offers (at some prices), capacities."""

    model: str
    mix: str
    latency: str
    demand: Demand
    offers: tuple[Offer, ...]
    capacities: Capacities


def case_of(
    calibration: Calibration,
    curves: Curves,
    model: str,
    prices: Mapping[str, float],
    *,
    mix: str,
    latency: str,
) -> Case:
    """The case with what each offer serves within the targets, from the model's curves."""
    full = find_model(model).model
    classes = classes_of(serving_lengths(calibration, find_model(full)), latency)
    demand = demand_of(mix, classes)
    offers = tuple(offers_of(calibration, full, prices, "EU27"))
    return Case(full, mix, latency, demand, offers, capacities_of(offers, demand.classes, curves))


def capacity_table(cases: Sequence[Case]) -> pd.DataFrame:
    """What one copy of each offer serves of each class within its targets, in requests per second.

    Columns: model, latency, configuration, and one a class; 0 where the targets are never kept.
    """
    rows = [
        {"model": short_name(case.model), "latency": case.latency, "configuration": offer.name}
        | dict(zip(MIXES[case.mix], case.capacities.requests_per_s[k], strict=True))
        for case in cases
        for k, offer in enumerate(case.offers)
    ]
    return pd.DataFrame(rows)


def ownership_grid(
    available_fracs: Sequence[float], notices_s: Sequence[float], away_s: float
) -> list[Ownership]:
    """Every availability with every notice, the most available first."""
    shares = sorted(available_fracs, reverse=True)
    return [Ownership(share, away_s, notice_s) for share in shares for notice_s in notices_s]


def cases_of(
    calibration: Calibration,
    curves: Mapping[str, Curves],
    prices: Mapping[str, float],
    latencies: Sequence[str],
    *,
    mix: str,
) -> list[Case]:
    """The cases of one mix for each model of `curves` and each latency target."""
    return [
        case_of(calibration, own, model, prices, mix=mix, latency=latency)
        for model, own in curves.items()
        for latency in latencies
    ]


def compare_fleets(
    calibration: Calibration,
    curves: Mapping[str, Curves],
    scenarios: Mapping[str, Mapping[str, float]],
    sizes: Sequence[CheckSize],
    *,
    latencies: Sequence[str] = tuple(LATENCY_TARGETS),
    policy: str = "slo-aware",
) -> pd.DataFrame:
    """The cheapest checked fleets: one row a model, mix, latency target and price scenario.

    `curves` are by model. Columns: model, mix, latency, prices, enterprise_usd_per_h and
    consumer_usd_per_h (NaN where that tier cannot), best_usd_per_h, enterprise_fleet,
    consumer_fleet, best_fleet, mixed (the best holds both tiers and is cheaper than either alone),
    kind (mixed, or the tier that is cheapest alone), saved_frac (against enterprise cards alone),
    bound_usd_per_h, attainment_frac and worst_frac (the lowest of any class and hour, pooled and in
    one window), wanted_frac.
    """
    rows: list[dict[str, object]] = []
    first = next(iter(scenarios.values()))
    for model, own in curves.items():
        for mix in MIXES:
            plans: dict[str, list[dict[str, object]]] = {}
            for latency in latencies:
                asked = latency if is_latency_critical(mix) else ""  # else all targets are alike
                if asked not in plans:
                    case = case_of(calibration, own, model, first, mix=mix, latency=latency)
                    check = simulated_check(case.capacities, policy, sizes)
                    plans[asked] = _compared_by_prices(case, check, scenarios)
                rows += [row | {"latency": latency} for row in plans[asked]]
    return pd.DataFrame(rows)


def compare_policies(case: Case, sizes: Sequence[CheckSize]) -> pd.DataFrame:
    """What each policy needs to keep the case's targets: the cheapest checked fleet under it.

    Columns: policy, usd_per_h, fleet, attainment_frac, over_bound (cost over the fluid optimum's);
    no fleet and NaN where a policy cannot keep them. `one-tier` has enterprise cards alone.
    """
    bound = fluid_bound(case.demand, case.offers).usd_per_h
    rows = []
    for policy in POLICIES:
        check = simulated_check(case.capacities, policy, sizes)
        try:
            if policy == "one-tier":
                only = [offer.tier == 0 for offer in case.offers]
                own = case.capacities.only(only)
                offers = [o if o.tier == 0 else replace(o, most=0) for o in case.offers]
                plan, table = tighten(case.demand, offers, own, check)
            else:
                found = best_checked(case.demand, case.offers, case.capacities, check)
                plan, table = found["any"]
            row = (plan.usd_per_h, plan.fleet, float(table["attainment_frac"].min()))
        except InputError:
            row = (np.nan, "", np.nan)
        rows.append((policy, *row, row[0] / bound))
    columns = ["policy", "usd_per_h", "fleet", "attainment_frac", "over_bound"]
    return pd.DataFrame(rows, columns=columns)


def policies_on_one_fleet(case: Case, plan: Plan, size: CheckSize) -> pd.DataFrame:
    """How each policy does on one given fleet: lowest attainment by class over its hours.

    Columns: policy, class, attainment_frac, wanted_frac.
    """
    rows = []
    for policy in POLICIES:
        table = simulated_check(case.capacities, policy, [size])(plan)
        low = table.groupby("class", sort=False)[["attainment_frac", "wanted_frac"]].min()
        rows.append(low.reset_index().assign(policy=policy))
    return pd.concat(rows, ignore_index=True)


def reclaim_table(
    case: Case, ownerships: Sequence[Ownership], size: CheckSize, policy: str = "slo-aware"
) -> pd.DataFrame:
    """What it costs that owners take consumer cards back: the cheapest checked fleet with each.

    The peak hour is run for `replications` windows without a pause, with outages, retries and the
    TTFT of a retried request counted from its first arrival. Columns: available_frac, away_s,
    notice_s, usd_per_h, fleet, attainment_frac (lowest class), retried_frac, lost_frac (rejected or
    abandoned), fixed_attainment_frac (of the fleet that suffices without outages).
    """
    hour = checked_hours(case.demand)[0]
    rates = np.repeat(case.demand.requests_per_s[:, [hour]], size.replications, axis=1)
    rng = np.random.default_rng(size.seed)
    workload = hourly_workload(case.demand.classes, rates, rng, hour_s=size.window_s)
    peak = Demand(case.demand.classes, case.demand.requests_per_s[:, [hour]])
    rows = []
    calm: Plan | None = None
    for ownership in ownerships:
        offers = [
            replace(o, available_frac=ownership.available_frac if o.tier == 1 else 1.0)
            for o in case.offers
        ]
        check = _owned_check(case, workload, ownership, size, policy)
        plan, table = best_checked(peak, offers, case.capacities, check)["any"]
        calm = calm or plan
        fixed = check(replace(calm, offers=tuple(offers)))
        rows.append(
            {
                "available_frac": ownership.available_frac,
                "away_s": ownership.away_s,
                "notice_s": ownership.notice_s,
                "usd_per_h": plan.usd_per_h,
                "fleet": plan.fleet,
                "attainment_frac": float(table["attainment_frac"].min()),
                "retried_frac": float(table["retried_frac"].iloc[0]),
                "lost_frac": float(table["lost_frac"].iloc[0]),
                "fixed_attainment_frac": float(fixed["attainment_frac"].min()),
            }
        )
    return pd.DataFrame(rows)


def frontier(
    case: Case,
    usd_per_kg: Sequence[float],
    attainments: Sequence[float],
    sizes: Sequence[CheckSize],
    *,
    policy: str = "slo-aware",
) -> pd.DataFrame:
    """Cost against carbon against attainment: one checked plan a price of carbon and attainment.

    Columns: attainment_target_frac, usd_per_kg, usd_per_h, kg_per_h, fleet, mixed,
    attainment_frac.
    """
    rows = []
    for wanted in attainments:
        classes = tuple(replace(s, attainment_frac=wanted) for s in case.demand.classes)
        demand = replace(case.demand, classes=classes)
        check = simulated_check(case.capacities, policy, sizes)
        for price in usd_per_kg:
            aim = Aim("weighted", price)
            found = best_checked(demand, case.offers, case.capacities, check, aim)
            plan, table = found["any"]
            rows.append(
                {
                    "attainment_target_frac": wanted,
                    "usd_per_kg": price,
                    "usd_per_h": plan.usd_per_h,
                    "kg_per_h": plan.g_per_h / 1000,
                    "fleet": plan.fleet,
                    "mixed": len(plan.tiers) > 1,
                    "attainment_frac": float(table["attainment_frac"].min()),
                }
            )
    return pd.DataFrame(rows)


def _compared_by_prices(
    case: Case, check: Check, scenarios: Mapping[str, Mapping[str, float]]
) -> list[dict[str, object]]:
    rows = []
    for name, prices in scenarios.items():
        offers = tuple(reprice_offer(offer, prices) for offer in case.offers)
        rows.append(_compared(replace(case, offers=offers), check) | {"prices": name})
    return rows


def _compared(case: Case, check: Check) -> dict[str, object]:
    found = best_checked(case.demand, case.offers, case.capacities, check)
    best, table = found["any"]
    usd = {name: found[name][0].usd_per_h for name in found}
    alone = [usd[name] for name in ("enterprise", "consumer") if name in usd]
    cheaper = all(best.usd_per_h < other * (1 - CHEAPER_FRAC) for other in alone)
    mixed = len(best.tiers) > 1 and cheaper
    enterprise = usd.get("enterprise", np.nan)
    return {
        "model": short_name(case.model),
        "mix": case.mix,
        "latency": case.latency,
        "prices": "",
        "enterprise_usd_per_h": enterprise,
        "consumer_usd_per_h": usd.get("consumer", np.nan),
        "best_usd_per_h": best.usd_per_h,
        "enterprise_fleet": found["enterprise"][0].fleet if "enterprise" in found else "",
        "consumer_fleet": found["consumer"][0].fleet if "consumer" in found else "",
        "best_fleet": best.fleet,
        "mixed": mixed,
        "kind": "mixed" if mixed else min(usd, key=lambda name: usd[name]),
        "saved_frac": 1 - best.usd_per_h / enterprise,
        "bound_usd_per_h": fluid_bound(case.demand, case.offers).usd_per_h,
        "attainment_frac": float(table["attainment_frac"].min()),
        "worst_frac": float(table["worst_frac"].min()),
        "wanted_frac": float(table["wanted_frac"].max()),
    }


def _owned_check(
    case: Case, workload: Workload, ownership: Ownership, size: CheckSize, policy: str
) -> Check:
    known: dict[tuple[tuple[str, int], ...], pd.DataFrame] = {}

    def check(plan: Plan) -> pd.DataFrame:
        if plan.copies in known:
            return known[plan.copies]
        if not suffices(plan.demand, plan.offers, plan.counts):
            return none_holds(plan)
        members = members_of(plan.offers, plan.counts, plan.demand.classes, case.capacities)
        lent = [n for n, member in enumerate(members) if member.tier == 1]
        rng = np.random.default_rng(size.seed + 1)
        duration_s = size.window_s * size.replications
        outages = draw_outages(lent, ownership, duration_s, rng)
        run = simulate_plan(plan, case.capacities, policy, workload, outages=outages)
        lost = np.isin(run.end, (REJECTED, ABANDONED)).mean()
        shares = {"retried_frac": float((run.tries > 1).mean()), "lost_frac": float(lost)}
        known[plan.copies] = attainment(run).assign(**shares)
        return known[plan.copies]

    return check
