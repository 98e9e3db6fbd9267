"""Plans and fleets as text: what the command line shows."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from hetinfer.errors import InputError
from hetinfer.fleet.checking import best_checked, check_sizes, simulate_plan, simulated_check
from hetinfer.fleet.demand import Workload, load_trace, steady_workload
from hetinfer.fleet.demand_file import DemandFile
from hetinfer.fleet.offers import Capacities, capacities_of, draw_curves
from hetinfer.fleet.planning import Plan, plan_fleet, plan_table, price_plan
from hetinfer.fleet.routing import policy_number
from hetinfer.fleet.simulation import attainment
from hetinfer.hardware import find_gpu, short_name
from hetinfer.values import rounded
from hetinfer.workload import Ints

CURVE_REQUESTS = 1500  # simulated a rate of each offer's latency curve


def capacities_for(file: DemandFile, seed: int) -> Capacities:
    """What one copy of each of a file's offers serves of each class, simulated."""
    curves = draw_curves(file.offers, file.demand.classes, CURVE_REQUESTS, seed)
    return capacities_of(file.offers, file.demand.classes, curves)


def planned(file: DemandFile, seed: int, *, checked: bool = True) -> tuple[Plan, Capacities]:
    """The plan for a demand file and the capacities behind it; InputError when nothing fits."""
    capacities = capacities_for(file, seed)
    if not checked:
        return plan_fleet(file.demand, file.offers, capacities, file.aim), capacities
    return checked_fleets(file, capacities, seed)["any"][0], capacities


def checked_fleets(
    file: DemandFile, capacities: Capacities, seed: int
) -> dict[str, tuple[Plan, pd.DataFrame]]:
    """`best_checked` for a demand file, under its policy."""
    check = simulated_check(capacities, file.policy, check_sizes(seed))
    return best_checked(file.demand, file.offers, capacities, check, file.aim)


def plan_text(
    file: DemandFile, seed: int, *, checked: bool = True, capacities: Capacities | None = None
) -> str:
    """The plan for a demand file as lines: fleet, cost, carbon, attainments; and each tier alone.

    Unchecked, it is the programme's own plan, and says so. Capacities are simulated unless given.
    InputError when nothing fits.
    """
    capacities = capacities or capacities_for(file, seed)
    if not checked:
        plan = plan_fleet(file.demand, file.offers, capacities, file.aim)
        return "\n".join([*plan_lines(file, plan), "  unchecked: no simulation was run"])
    found = checked_fleets(file, capacities, seed)
    plan, table = found["any"]
    lines = [*plan_lines(file, plan), f"  checked by simulation under {file.policy}:"]
    lines += _attainment_lines(table)
    for name in ("enterprise", "consumer"):
        text = f"no fleet of {name} cards alone keeps the targets"
        if name in found:
            alone = found[name][0]
            text = f"{name} cards alone: {alone.fleet}, {rounded(alone.usd_per_h, 2)} USD/h"
        lines.append(f"  {text} [simulated]")
    return "\n".join(lines)


def fleet_text(  # noqa: PLR0913 - one argument an option of the command
    file: DemandFile,
    copies: Sequence[str],
    *,
    policy: str,
    hour: int,
    duration_s: float,
    seed: int,
    trace: Path | None = None,
) -> str:
    """How a given fleet does under one hour of a demand file, or under a trace: as lines.

    `copies` are `gpu=number` or `gpu:gpus=number`. InputError for a configuration that the file
    does not offer, an hour outside the day, or an unknown policy.
    """
    policy_number(policy)
    counts = counts_of(file, copies)
    workload = _workload(file, hour, duration_s, seed, trace)
    capacities = capacities_for(file, seed)
    none = np.zeros((len(file.offers), *file.demand.requests_per_s.shape))
    plan = Plan(file.offers, file.demand, counts, none, 0.0, 0.0, file.aim)
    plan = price_plan(plan, capacities)
    run = simulate_plan(plan, capacities, policy, workload)
    served = ", ".join(
        f"{name} {rounded(100 * share, 0)} %" for name, share in _shares(plan, run.served)
    )
    return "\n".join(
        [
            f"{short_name(file.model)} on {plan.fleet}: {rounded(plan.usd_per_h, 2)} USD/h "
            f"[reference], {policy}",
            f"  {run.end.size} requests; served by {served} [simulated]",
            *_attainment_lines(attainment(run)),
        ]
    )


def counts_of(file: DemandFile, copies: Sequence[str]) -> tuple[int, ...]:
    """Copies of each of a file's offers from texts such as `rtx-4090:2=3`; InputError names one."""
    counts = [0] * len(file.offers)
    known = [f"{offer.gpu}:{offer.gpu_count}" for offer in file.offers]
    for text in copies:
        configuration, _, number = text.partition("=")
        gpu, _, count = configuration.partition(":")
        name = f"{find_gpu(gpu).gpu}:{count or 1}"
        if name not in known or not number.isdecimal():
            raise _copies_error(text, f"CONFIGURATION=NUMBER with one of {', '.join(known)}")
        place = known.index(name)
        counts[place] += int(number)
        if counts[place] > file.offers[place].most:
            raise _copies_error(text, f"at most {file.offers[place].most} of {name}")
    if not any(counts):
        raise _copies_error(", ".join(copies), "at least one copy")
    return tuple(counts)


def _copies_error(got: str, expected: str) -> InputError:
    return InputError(
        "copies", got=repr(got), expected=expected, where="--copies",
        do="ask for what the demand file offers",
    )  # fmt: skip


def _workload(
    file: DemandFile, hour: int, duration_s: float, seed: int, trace: Path | None
) -> Workload:
    classes, rates = file.demand.classes, file.demand.requests_per_s
    if trace is not None:
        loaded = load_trace(trace, classes[0])
        return Workload(classes, loaded.requests, loaded.service)
    if not 0 <= hour < rates.shape[1]:
        raise InputError(
            "no such hour",
            got=hour,
            expected=f"0 to {rates.shape[1] - 1}",
            where="--hour",
            do="name an hour of the day",
        )
    rng = np.random.default_rng(seed)
    return steady_workload(classes, list(rates[:, hour]), duration_s, rng)


def _shares(plan: Plan, served: Ints) -> list[tuple[str, float]]:
    names = np.repeat([name for name, _ in plan.copies], [count for _, count in plan.copies])
    totals = pd.Series(served, index=names).groupby(level=0, sort=False).sum()
    return [(str(name), float(total / served.sum())) for name, total in totals.items()]


def plan_lines(file: DemandFile, plan: Plan) -> list[str]:
    """A plan as lines: fleet, cost, carbon, and what each configuration is for."""
    kg = rounded(plan.g_per_h / 1000, 3)
    lines = [
        f"{short_name(file.model)}: {plan.fleet}",
        f"  {rounded(plan.usd_per_h, 2)} USD/h, {kg} kg CO2e/h "
        "[simulated; prices and powers reference]",
    ]
    for row in plan_table(plan).to_dict("records"):
        shares = ", ".join(
            f"{name.removesuffix('_frac')} {rounded(100 * share, 0)} %"
            for name, share in row.items()
            if str(name).endswith("_frac") and share > 0
        )
        if shares:
            lines.append(f"  {row['configuration']}: planned for {shares}")
    return lines


def _attainment_lines(table: pd.DataFrame) -> list[str]:
    lines = []
    for row in table.to_dict("records"):
        hour = f"hour {row['hour']:>2}, " if "hour" in row else ""
        mark = "" if row["holds"] else ": MISSED"
        lines.append(
            f"    {hour}{row['class']}: {rounded(100 * row['attainment_frac'], 2)} % in time "
            f"(wanted {rounded(100 * row['wanted_frac'], 1)} %), "
            f"P99 TTFT {rounded(row['ttft_p99_s'], 3)} s [simulated]{mark}"
        )
    return lines
