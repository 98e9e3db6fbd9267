"""A scenario's planned fleet as a person reads it: a sentence, a figure, a table, a file."""

from collections.abc import Mapping
from html import escape

import pandas as pd

from hetinfer.errors import InputError
from hetinfer.explorer.display import html_table, image
from hetinfer.explorer.plan import LABELS, cost_table, scenario_fleets, served_table
from hetinfer.explorer.scenario import Scenario
from hetinfer.explorer.toml import download_html
from hetinfer.explorer.traffic import traffic_shares
from hetinfer.figures.fleet import draw_planned
from hetinfer.fleet.planning import Plan, plan_table
from hetinfer.values import rounded


def fleet_html(cells: pd.DataFrame, scenario: Scenario) -> str:
    """All that the explorer shows of the fleet planned for a scenario, or why there is none."""
    link = ""
    try:
        link = download_html(cells, scenario)
        plans = scenario_fleets(cells, scenario)
    except InputError as error:
        return f"<p>{escape(str(error))}</p>{link}"
    label = "Requests per second of each class by configuration, and the cost of the fleet"
    figure = draw_planned(served_table(plans["any"]), cost_table(plans))
    return (
        f"<p>{escape(fleet_sentence(plans, scenario))}</p>{image(figure, label)}"
        f'<div class="explored">{fleet_table_html(plans["any"])}</div>{link}'
    )


def fleet_sentence(plans: Mapping[str, Plan], scenario: Scenario) -> str:
    """The mix, the cheapest fleet for it, and what fleets of one kind of card cost instead."""
    shares = ", ".join(
        f"{rounded(100 * share, 0)} % {name}"
        for name, share in traffic_shares(scenario.mix).items()
    )
    best = plans["any"]
    cost = f"{rounded(best.usd_per_h, 2)} USD and {rounded(best.g_per_h / 1000, 2)} kg CO2e"
    alone = "; ".join(_alone(name, plans) for name in LABELS if name != "any")
    return (
        f"A fleet for {scenario.rate_requests_per_s:g} requests/s, {shares}: the cheapest is "
        f"{best.fleet}, for {cost} an hour. {alone}. "
        "(Simulated, unchecked; prices and powers reference.)"
    )


def fleet_table_html(plan: Plan) -> str:
    """The configurations of a fleet as an HTML table: copies, cost, share of each class."""
    names = [service.name for service in plan.demand.classes]
    heads = [("configuration", ""), ("copies", "simulated"), ("USD per h", "price chosen")]
    heads += [(f"of {name}", "simulated") for name in names]
    rows = [
        [
            str(row["configuration"]),
            str(row["copies"]),
            rounded(row["usd_per_h"], 2),
            *(f"{rounded(100 * row[f'{name}_frac'], 0)} %" for name in names),
        ]
        for row in plan_table(plan).to_dict("records")
    ]
    return html_table(heads, rows)


def _alone(name: str, plans: Mapping[str, Plan]) -> str:
    if name not in plans:
        return f"{LABELS[name]} do not serve it within the targets"
    return f"{LABELS[name]} cost {rounded(plans[name].usd_per_h, 2)} USD/h"
