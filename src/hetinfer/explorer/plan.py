"""A scenario planned: how many of which configuration serve its traffic within its targets."""

from collections.abc import Mapping
from contextlib import suppress
from functools import cache

import pandas as pd

from hetinfer.errors import InputError
from hetinfer.explorer.scenario import SEED, Scenario
from hetinfer.explorer.toml import scenario_toml
from hetinfer.explorer.traffic import traffic_of
from hetinfer.fleet.checking import FLEETS
from hetinfer.fleet.demand import spread_lengths
from hetinfer.fleet.demand_file import DemandFile, parse_demand
from hetinfer.fleet.display import CURVE_REQUESTS, plan_text
from hetinfer.fleet.offers import Capacities, capacities_of, draw_curve
from hetinfer.fleet.planning import Plan, plan_fleet
from hetinfer.simulation.engine import Engine
from hetinfer.simulation.fitted import Calibration, load_calibrations

LEAST_REQUESTS_PER_S = 1e-6  # a smaller rate is the solver's rounding
LABELS = {"any": "cheapest", "enterprise": "H100s alone", "consumer": "4090s alone"}


def scenario_fleets(cells: pd.DataFrame, scenario: Scenario) -> dict[str, Plan]:
    """The cheapest fleets of `any` cards, and of `enterprise` or `consumer` ones alone, unchecked.

    What `hetinfer plan --unchecked` makes of the saved scenario. A tier that cannot serve the
    traffic has no entry. Latency curves are simulated once a model and class, whatever the prices,
    targets and shares. InputError when nothing fits, or for a mix without traffic. Evidence:
    simulated; prices and powers reference.
    """
    file, capacities = _demand_of(cells, scenario)
    plans = {"any": plan_fleet(file.demand, file.offers, capacities, file.aim)}
    for name in ("enterprise", "consumer"):
        own = capacities.only([offer.tier in FLEETS[name] for offer in file.offers])
        with suppress(InputError):
            plans[name] = plan_fleet(file.demand, file.offers, own, file.aim)
    return plans


def checked_text(cells: pd.DataFrame, scenario: Scenario) -> str:
    """What `hetinfer plan` says of the saved scenario, or why there is no plan; takes seconds."""
    try:
        file, capacities = _demand_of(cells, scenario)
        return plan_text(file, SEED, capacities=capacities)
    except InputError as error:
        return str(error)


def cost_table(plans: Mapping[str, Plan]) -> pd.DataFrame:
    """One row a kind of fleet: label, fleet in words (empty: none keeps the targets), usd_per_h,
    kg_per_h (NaN without one).
    """
    rows = []
    for name, label in LABELS.items():
        row: dict[str, object] = {"label": label, "fleet": ""}
        if name in plans:
            plan = plans[name]
            row |= {"fleet": plan.fleet, "usd_per_h": plan.usd_per_h, "kg_per_h": plan.g_per_h}
        rows.append(row)
    table = pd.DataFrame(rows, columns=["label", "fleet", "usd_per_h", "kg_per_h"])
    return table.assign(kg_per_h=table["kg_per_h"] / 1000)


def served_table(plan: Plan) -> pd.DataFrame:
    """Who serves what: columns class, configuration, requests_per_s (the day's mean)."""
    mean = plan.spread_requests_per_s.mean(axis=2)
    rows = [
        {"class": service.name, "configuration": offer.name, "requests_per_s": mean[k, c]}
        for c, service in enumerate(plan.demand.classes)
        for k, offer in enumerate(plan.offers)
    ]
    table = pd.DataFrame(rows)
    return table[table["requests_per_s"] > LEAST_REQUESTS_PER_S].reset_index(drop=True)


def _demand_of(cells: pd.DataFrame, scenario: Scenario) -> tuple[DemandFile, Capacities]:
    """The saved scenario as it is read, and what one copy of each offer serves of each class."""
    text = scenario_toml(cells, scenario)
    file = parse_demand(text, _calibration(), where="the scenario")
    traffic = traffic_of(cells, scenario)
    curves = {
        (offer.name, own.name): _curve(offer.engine, own.prompt_tokens, own.output_tokens)
        for offer in file.offers
        for own in traffic
    }
    known = {key: curve for key, curve in curves.items() if curve is not None}
    return file, capacities_of(file.offers, file.demand.classes, known)


@cache
def _calibration() -> Calibration:
    return load_calibrations()[0]


@cache
def _curve(engine: Engine, prompt_tokens: int, output_tokens: int) -> pd.DataFrame | None:
    """Kept, for it is all that takes time: nothing that a slider moves changes it but the model."""
    return draw_curve(engine, spread_lengths(prompt_tokens, output_tokens), CURVE_REQUESTS, SEED)
