"""Plans checked by simulation, tightened until they hold, and compared with fleets of one tier."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import numpy.typing as npt
import pandas as pd

from hetinfer.errors import InputError
from hetinfer.fleet.availability import NO_OUTAGES, OwnerOutages
from hetinfer.fleet.bound import suffices
from hetinfer.fleet.demand import HOUR_S, ServiceClass, Workload, hourly_workload
from hetinfer.fleet.offers import Capacities, Offer, home_tiers, members_of
from hetinfer.fleet.planning import Aim, Demand, Plan, plan_fleet, price_plan
from hetinfer.fleet.simulation import FleetRun, Router, attainment, in_time_of, simulate_fleet

Floats = npt.NDArray[np.float64]
SETTLED_S = 5.0  # a wait that may come and go in a stable engine
WINDOW_GAP_S = 3_600.0  # between two windows of a check: every queue is empty again long before
FIRST_RESERVE_FRAC = -0.5  # engines that share classes serve more than capacities say: start below
RESERVE_STEP_FRAC = 0.1
SPREAD_RESERVES_FRAC = (0.0, -0.25, -0.5, -0.75, -0.9, -0.97)  # a spread, not a plan, is wanted
MOST_STEPS = 40
EQUAL_COST_FRAC = 1e-9
MOST_LISTED = 100_000  # beyond, a fleet is so large that one card more or less says little
MOST_TRIED = 25  # fleets cheaper than the one found that are tried, cheapest first
FLEETS = {"enterprise": {0}, "consumer": {1}, "any": {0, 1}}  # by the tiers allowed
Check = Callable[[Plan], pd.DataFrame]


@dataclass(frozen=True)
class CheckSize:
    """How much is simulated: of each of `hours` hours, `replications` windows of `window_s`."""

    window_s: float
    replications: int
    seed: int
    hours: int = 3


def check_sizes(
    seed: int,
    *,
    window_s: float = 30.0,
    replications: int = 20,
    long_window_s: float = 600.0,
    hours: int = 3,
) -> tuple[CheckSize, ...]:
    """A short look at all hours, one long window of the first two, and many of `hours` hours.

    The first sorts out most fleets, the second finds growing queues, the third has the attainment.
    """
    return (
        CheckSize(2 * window_s, 1, seed),
        CheckSize(long_window_s, 1, seed + 1, 2),
        CheckSize(window_s, replications, seed + 2, hours),
    )


def checked_hours(demand: Demand) -> tuple[int, ...]:
    """The hours that a check simulates: the peak, the one that exceeds it most, and the median.

    By tokens of all classes; where no hour asks more of any class than the peak does, the quietest
    is the second. An hour without requests is never one; alike hours are one.
    """
    tokens = np.array(
        [s.lengths.prompt_tokens.mean() + s.lengths.output_tokens.mean() for s in demand.classes]
    )
    load = demand.requests_per_s * tokens[:, np.newaxis]
    busy = np.flatnonzero(load.sum(axis=0) > 0)
    ranked = busy[np.argsort(load[:, busy].sum(axis=0), kind="stable")]
    peak = int(ranked[-1])
    excess = np.maximum(load[:, ranked] - load[:, [peak]], 0.0).sum(axis=0)
    kept: list[int] = []
    for hour in (peak, int(ranked[excess.argmax()]), int(ranked[ranked.size // 2])):
        rates = demand.requests_per_s[:, hour]
        if not any(np.array_equal(rates, demand.requests_per_s[:, other]) for other in kept):
            kept.append(hour)
    return tuple(kept)


def hourly_targets(classes: Sequence[ServiceClass], window_s: float) -> tuple[ServiceClass, ...]:
    """The classes with TTFT targets that a window must keep for an hour to keep the real ones.

    A queue that grows steadily grows by the window's share of an hour: a target of a minute allows
    no more than a second of growth in a minute. Waits below `SETTLED_S` are no sign of growth.
    """
    frac = min(1.0, window_s / HOUR_S)
    return tuple(
        replace(s, ttft_target_s=min(s.ttft_target_s, max(SETTLED_S, s.ttft_target_s * frac)))
        for s in classes
    )


def check_workload_of(demand: Demand, size: CheckSize) -> tuple[Workload, npt.NDArray[np.int64]]:
    """Windows of the checked hours, one after the other with pauses; and each request's window.

    One simulation of many windows costs one start. Windows are numbered hour by hour.
    """
    hours = np.repeat(checked_hours(demand)[: size.hours], size.replications)
    rates = demand.requests_per_s[:, hours]
    rng = np.random.default_rng(size.seed)
    joined = hourly_workload(demand.classes, rates, rng, hour_s=size.window_s)
    arrival_s = joined.requests.arrival_s
    number = np.floor(arrival_s / size.window_s).astype(np.int64)
    requests = replace(joined.requests, arrival_s=arrival_s + number * WINDOW_GAP_S)
    return replace(joined, requests=requests), number


def simulate_plan(
    plan: Plan,
    capacities: Capacities,
    policy: str,
    workload: Workload,
    *,
    outages: OwnerOutages = NO_OUTAGES,
) -> FleetRun:
    """A plan's fleet under some workload of its classes; engines are in the order of its offers."""
    members = members_of(plan.offers, plan.counts, plan.demand.classes, capacities)
    router = Router(policy, home_tiers(plan.offers, capacities))
    return simulate_fleet(workload, members, router, outages=outages)


def attainment_by_hour(
    run: FleetRun, number: npt.NDArray[np.int64], demand: Demand, size: CheckSize
) -> pd.DataFrame:
    """Attainment of each class in each checked hour, over its windows, by `hourly_targets`.

    Columns as of `attainment`, with `hour` first, and `worst_frac`, the worst of the windows.
    """
    classes = hourly_targets(demand.classes, size.window_s)
    run = replace(run, workload=replace(run.workload, classes=classes))
    tables = []
    for place, hour in enumerate(checked_hours(demand)[: size.hours]):
        own = (number // size.replications) == place
        table = attainment(_part_of(run, own))
        table.insert(0, "hour", hour)
        tables.append(table.assign(worst_frac=_worst(run, number, own, table["class"])))
    return pd.concat(tables, ignore_index=True)


def check_plan(
    plan: Plan, capacities: Capacities, policy: str, size: CheckSize
) -> tuple[Plan, pd.DataFrame]:
    """The plan, checked if every class kept its target in every hour, and the attainments."""
    table = simulated_check(capacities, policy, [size])(plan)
    return replace(plan, checked=bool(table["holds"].all())), table


def simulated_check(capacities: Capacities, policy: str, sizes: Sequence[CheckSize]) -> Check:
    """A check by simulation at every size in turn, up to the first that a target is missed at.

    A small size first sorts out most fleets before a large one, and the fluid bound those before
    any. A fleet's result is kept: prices change nothing unless the policy looks at them, so one
    check may serve several price lists.
    """
    known: dict[tuple[tuple[str, int], ...], pd.DataFrame] = {}
    traffic = {}

    def check(plan: Plan) -> pd.DataFrame:
        key = plan.copies
        if key in known:
            return known[key]
        if not suffices(plan.demand, plan.offers, plan.counts):
            known[key] = none_holds(plan)
            return known[key]
        for size in sizes:
            if size not in traffic:
                traffic[size] = check_workload_of(plan.demand, size)
            workload, number = traffic[size]
            run = simulate_plan(plan, capacities, policy, workload)
            known[key] = attainment_by_hour(run, number, plan.demand, size)
            if not known[key]["holds"].all():
                break
        return known[key]

    return check


def none_holds(plan: Plan) -> pd.DataFrame:
    """What a check says of a fleet that cannot even work off the demand: every class misses."""
    names = [s.name for s, rates in _classes_with_rates(plan.demand) if rates.any()]
    missing = dict.fromkeys(("attainment_frac", "worst_frac"), 0.0)
    return pd.DataFrame({"class": names, "holds": False}).assign(**missing)


def tighten(
    demand: Demand,
    offers: Sequence[Offer],
    capacities: Capacities,
    check: Check,
    aim: Aim | None = None,
) -> tuple[Plan, pd.DataFrame]:
    """The first plan that holds, planning for more of each class that missed until one does.

    InputError as `plan_fleet`, when the caps allow no more, or when no reserve helps.
    """
    aim = aim or Aim()
    reserve = np.full(len(demand.classes), FIRST_RESERVE_FRAC)
    for _ in range(MOST_STEPS):
        reserved = replace(aim, reserve_frac=tuple(float(r) for r in reserve))
        plan = plan_fleet(demand, offers, capacities, reserved)
        table = check(plan)
        if table["holds"].all():
            return replace(plan, checked=True), table
        missed = set(table.loc[~table["holds"], "class"])
        reserve += RESERVE_STEP_FRAC * np.array([s.name in missed for s in demand.classes])
    raise InputError(
        "no plan holds",
        got=f"{plan.fleet}: {', '.join(sorted(missed))} missed with a reserve of {reserve.max():g}",
        expected="a fleet that keeps every target in simulation",
        where="the check of the plan",
        do="relax that class's targets, or choose another policy",
    )


def improve(plan: Plan, check: Check) -> tuple[Plan, pd.DataFrame]:
    """The cheapest fleet that holds, among those cheaper than a plan that does; else the plan.

    Capacities of single classes do not know what engines gain by sharing, so the programme may pass
    over such fleets. Tried are those that the fluid bound does not rule out, from its cost upwards.
    """
    tried = 0
    for counts in cheaper_counts(plan):
        other = replace(plan, counts=counts, usd_per_h=_usd_per_h(plan.offers, counts))
        table = check(other)
        if table["holds"].all():
            return other, table
        tried += bool(table["attainment_frac"].any())  # by simulation, that is
        if tried == MOST_TRIED:
            break
    return plan, check(plan)


def cheaper_counts(plan: Plan) -> list[tuple[int, ...]]:
    """Every number of copies that costs less than the plan's fleet, within the caps, by cost."""
    budget = plan.usd_per_h * (1 - EQUAL_COST_FRAC)
    ranges = [range(min(offer.most, int(budget / offer.usd_per_h)) + 1) for offer in plan.offers]
    if np.prod([float(len(numbers)) for numbers in ranges]) > MOST_LISTED:
        return []
    listed = [(_usd_per_h(plan.offers, counts), counts) for counts in product(*ranges)]
    return [counts for usd, counts in sorted(listed) if 0 < usd <= budget]


def best_checked(
    demand: Demand,
    offers: Sequence[Offer],
    capacities: Capacities,
    check: Check,
    aim: Aim | None = None,
) -> dict[str, tuple[Plan, pd.DataFrame]]:
    """Checked plans of `enterprise` and `consumer` cards alone, and `any`: the best there is.

    A tier that cannot serve the demand has no entry. `any` is the best of those two and of the
    plan that may mix, so it is never dearer than either. InputError when nothing holds.
    """
    aim = aim or Aim()
    found: dict[str, tuple[Plan, pd.DataFrame]] = {}
    errors: list[InputError] = []
    for name, tiers in FLEETS.items():
        allowed = [offer if offer.tier in tiers else replace(offer, most=0) for offer in offers]
        own = capacities.only([offer.tier in tiers for offer in offers])
        try:
            found[name] = tighten(demand, allowed, own, check, aim)
        except InputError as error:
            errors.append(error)
    if not found:
        raise errors[-1]
    found["any"] = min(found.values(), key=lambda item: merit(item[0], aim))
    if aim.objective == "cost":
        found = {
            name: _improved(plan, table, check, capacities) for name, (plan, table) in found.items()
        }
        found["any"] = min(found.values(), key=lambda item: merit(item[0], aim))
    return found


def merit(plan: Plan, aim: Aim) -> float:
    """What the aim makes least, of a plan, per hour: USD, kg, or USD with carbon's price."""
    kg = plan.g_per_h / 1000
    if aim.objective == "carbon":
        return kg
    return plan.usd_per_h + (aim.usd_per_kg * kg if aim.objective == "weighted" else 0.0)


def _classes_with_rates(demand: Demand) -> Iterator[tuple[ServiceClass, Floats]]:
    return zip(demand.classes, demand.requests_per_s, strict=True)


def _part_of(run: FleetRun, own: npt.NDArray[np.bool_]) -> FleetRun:
    requests = run.workload.requests
    part = {name: getattr(requests, name)[own] for name in requests.__dict__}
    workload = Workload(run.workload.classes, replace(requests, **part), run.workload.service[own])
    arrays = {
        name: getattr(run, name)[own]
        for name in ("end", "engine", "tries", "ttft_s", "tpot_s", "finished_s")
    }
    return replace(run, workload=workload, **arrays)


def _worst(
    run: FleetRun,
    number: npt.NDArray[np.int64],
    own: npt.NDArray[np.bool_],
    names: "pd.Series[str]",
) -> list[float]:
    worst = []
    for c, service in enumerate(run.workload.classes):
        if service.name not in set(names):
            continue
        mine = own & (run.workload.service == c)
        kept = in_time_of(run, c)[mine].astype(float)
        shares = pd.Series(kept).groupby(number[mine]).mean()
        worst.append(float(shares.min()))
    return worst


def _improved(
    plan: Plan, table: pd.DataFrame, check: Check, capacities: Capacities
) -> tuple[Plan, pd.DataFrame]:
    better, better_table = improve(plan, check)
    if better.counts == plan.counts:
        return plan, table
    return _respread(better, capacities), better_table


def _respread(plan: Plan, capacities: Capacities) -> Plan:
    """The plan with the programme's spread over its own copies, at the first reserve it allows."""
    offers = [replace(o, most=n) for o, n in zip(plan.offers, plan.counts, strict=True)]
    for reserve in SPREAD_RESERVES_FRAC:
        aim = replace(plan.aim, reserve_frac=(reserve,) * len(plan.demand.classes))
        try:
            spread = plan_fleet(plan.demand, offers, capacities, aim).spread_requests_per_s
        except InputError:
            continue
        return price_plan(replace(plan, spread_requests_per_s=spread, aim=aim), capacities)
    return plan


def _usd_per_h(offers: Sequence[Offer], counts: Sequence[int]) -> float:
    return sum(offer.usd_per_h * count for offer, count in zip(offers, counts, strict=True))
