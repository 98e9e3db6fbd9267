"""The explorer: a model's recorded runs at prices, targets, power and grid of a reader's choice."""

from hetinfer.explorer.display import figure_html, sentence, table_html
from hetinfer.explorer.plan import scenario_plan
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
from hetinfer.explorer.widgets import show_explorer

__all__ = [
    "Scenario", "at_rate", "explore", "figure_html", "load_cells", "rates", "reprice",
    "scenario_of", "scenario_plan", "scenario_toml", "sentence", "show_explorer", "table_html",
]  # fmt: skip
