"""The explorer: a model's recorded runs at prices, targets, power and grid of a reader's choice."""

from hetinfer.explorer.display import figure_html, sentence, table_html
from hetinfer.explorer.plan import checked_text, cost_table, scenario_fleets, served_table
from hetinfer.explorer.scenario import (
    Scenario,
    at_rate,
    explore,
    load_cells,
    rates,
    reprice,
    scenario_of,
)
from hetinfer.explorer.toml import scenario_toml
from hetinfer.explorer.traffic import traffic_of, traffic_shares
from hetinfer.explorer.widgets import show_explorer

__all__ = [
    "Scenario", "at_rate", "checked_text", "cost_table", "explore", "figure_html", "load_cells",
    "rates", "reprice", "scenario_fleets", "scenario_of", "scenario_toml", "sentence",
    "served_table", "show_explorer", "table_html", "traffic_of", "traffic_shares",
]  # fmt: skip
