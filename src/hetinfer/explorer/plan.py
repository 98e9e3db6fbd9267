"""A scenario planned: how many of which configuration serve its rate within its target."""

import tempfile
from pathlib import Path

import pandas as pd

from hetinfer.errors import InputError
from hetinfer.explorer.scenario import SEED, Scenario
from hetinfer.explorer.toml import scenario_toml
from hetinfer.paths import write_atomically


def scenario_plan(cells: pd.DataFrame, scenario: Scenario) -> str:
    """What `hetinfer plan --unchecked` says of the exported scenario, or why there is no plan.

    Takes seconds, for capacities are simulated. Evidence: simulated; prices and powers reference.
    """
    from hetinfer.fleet.demand_file import load_demand
    from hetinfer.fleet.display import plan_text
    from hetinfer.simulation.fitted import load_calibrations

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scenario.toml"
        write_atomically(path, scenario_toml(cells, scenario))
        try:
            return plan_text(load_demand(path, load_calibrations()[0]), SEED, checked=False)
        except InputError as error:
            return str(error)
