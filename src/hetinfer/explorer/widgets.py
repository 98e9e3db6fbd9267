"""Controls over an explored scenario, for JupyterLab and Voila."""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import pandas as pd

from hetinfer.explorer.display import figure_html, sentence, table_html
from hetinfer.explorer.fleet_display import fleet_html
from hetinfer.explorer.plan import checked_text
from hetinfer.explorer.scenario import Scenario, explore, rates
from hetinfer.explorer.traffic import traffic_shares
from hetinfer.fleet.scenarios import CLASSES
from hetinfer.footprint.carbon import HOLDINGS
from hetinfer.footprint.grid import load_grid
from hetinfer.footprint.power import POWER_ASSUMPTIONS
from hetinfer.hardware import find_model
from hetinfer.values import rounded

HIGHEST_H100_USD_PER_H = 13.0  # a hyperscaler's list price of the dearer SXM card is 12.29
HIGHEST_4090_USD_PER_H = 2.0  # three times the dearest listed; the study's is 0.25
PRICE_STEP_USD_PER_H = 0.01
TARGETS_S = (0.055, 0.1, 0.2, 0.5, 1.0, 2.0, math.inf)
LEAST_AVAILABLE_FRAC = 0.5
MOST_PARTS = 100
CHECK = "Check this fleet by simulation (takes some seconds)"
MIX = (
    "<p>Parts of the requests by class, for the fleet below; their sum does not matter. Chat and "
    "batch are as long as the model's recorded requests. The target is chat's; agents and "
    "development may take 1.6 times as long, the others as long as in chapter 08.</p>"
)
STYLE = (
    "<style>.repriced{border-collapse:collapse}.repriced th,.repriced td{padding:.25em .6em;"
    "text-align:right;white-space:nowrap;border-bottom:1px solid #ccc}.repriced th{white-space:"
    "normal}.repriced th:first-child,.repriced td:first-child{text-align:left}"
    ".explored{overflow-x:auto}.widget-html-content{min-width:0}</style>"
)


def show_explorer(cells: pd.DataFrame, start: Scenario) -> Any:
    """Controls over a scenario: a widget with what it makes of the recorded runs, and its fleet.

    `cells` is `load_cells`. Both follow a control by themselves; the fleet is checked by simulation
    when the button is pressed. Needs a live kernel to move.
    """
    import ipywidgets

    controls, parts = _controls(cells, start), _parts(start.mix)
    shown, planned, checked = (ipywidgets.HTML() for _ in range(3))
    button = ipywidgets.Button(description=CHECK, layout={"width": "auto"})

    def chosen() -> Scenario:
        values = {name: control.value for name, control in controls.items()}
        return Scenario(**values, mix={name: part.value for name, part in parts.items()})

    def plan(_: object = None) -> None:
        checked.value = ""
        planned.value = fleet_html(cells, chosen())

    def update(_: object = None) -> None:
        shown.value = scenario_html(cells, chosen())
        plan()

    def check(_: object) -> None:
        checked.value = "<p>checking by simulation</p>"
        checked.value = f"<pre>{escape(checked_text(cells, chosen()))}</pre>"

    for name, control in controls.items():
        control.observe(plan if name == "available_frac" else update, names="value")
    for part in parts.values():
        part.observe(plan, names="value")
    button.on_click(check)
    update()
    chosen_by = _beside(controls.values(), [ipywidgets.HTML(MIX), *parts.values()])
    return ipywidgets.VBox([chosen_by, shown, planned, button, checked])


def scenario_html(cells: pd.DataFrame, scenario: Scenario) -> str:
    """What the explorer shows of the recorded runs in one scenario, as HTML."""
    table = explore(cells, scenario)
    return (
        f"{STYLE}<p>{escape(sentence(table, scenario))}</p>{figure_html(table, scenario)}"
        f'<div class="explored">{table_html(table, scenario)}</div>'
    )


def _controls(cells: pd.DataFrame, start: Scenario) -> dict[str, Any]:
    """A control for each field of a scenario, by the field's name."""
    grid = load_grid()
    regions = [(f"{name}, {rounded(grid[name].g_co2_per_kwh, 0)} g/kWh", name) for name in grid]
    targets = [(_target_text(target_s), target_s) for target_s in TARGETS_S]
    at_rates = [(f"{q:g}", q) for q in rates(cells)]
    return {
        "model": _dropdown("model", _by_size(cells), start.model),
        "rate_requests_per_s": _steps("requests/s", at_rates, start.rate_requests_per_s),
        "ttft_target_s": _steps("P99 TTFT within", targets, start.ttft_target_s),
        "h100_usd_per_h": _price("H100, USD/h", start.h100_usd_per_h, HIGHEST_H100_USD_PER_H),
        "rtx_4090_usd_per_h": _price(
            "4090, USD/h", start.rtx_4090_usd_per_h, HIGHEST_4090_USD_PER_H
        ),
        "region": _dropdown("grid", regions, start.region),
        "power": _dropdown("power of boards", POWER_ASSUMPTIONS, start.power),
        "holding": _dropdown("4090s are", HOLDINGS, start.holding),
        "available_frac": _availability(start.available_frac),
    }


def _target_text(target_s: float) -> str:
    return "no target" if math.isinf(target_s) else f"{rounded(1000 * target_s, 0)} ms"


def _dropdown(label: str, options: Sequence[Any], value: object) -> Any:
    import ipywidgets

    return ipywidgets.Dropdown(options=options, value=value, description=label, **_look())


def _steps(label: str, options: Sequence[Any], value: object) -> Any:
    import ipywidgets

    return ipywidgets.SelectionSlider(
        options=options, value=value, description=label, continuous_update=False, **_look()
    )


def _price(label: str, value: float, highest: float) -> Any:
    import ipywidgets

    return ipywidgets.FloatSlider(
        value=value,
        min=PRICE_STEP_USD_PER_H,
        max=highest,
        step=PRICE_STEP_USD_PER_H,
        description=label,
        continuous_update=False,
        **_look(),
    )


def _availability(value: float) -> Any:
    import ipywidgets

    return ipywidgets.FloatSlider(
        value=value,
        min=LEAST_AVAILABLE_FRAC,
        max=1.0,
        step=0.05,
        description="4090s there (plan)",
        continuous_update=False,
        **_look(),
    )


def _parts(mix: Mapping[str, float]) -> dict[str, Any]:
    """A slider for each class of traffic, by its name, at its part of a hundred."""
    import ipywidgets

    shares = traffic_shares(mix)
    return {
        name: ipywidgets.IntSlider(
            value=round(MOST_PARTS * shares.get(name, 0.0)),
            max=MOST_PARTS,
            step=5,
            description=name,
            continuous_update=False,
            **_look(),
        )
        for name in CLASSES
    }


def _beside(*columns: Iterable[Any]) -> Any:
    """Columns of widgets side by side, one below the other where the page is narrow."""
    import ipywidgets

    boxes = [
        ipywidgets.VBox(list(column), layout={"width": "34rem", "max_width": "100%"})
        for column in columns
    ]
    return ipywidgets.Box(boxes, layout={"flex_flow": "row wrap"})


def _look() -> dict[str, Any]:
    return {"layout": {"width": "min(32rem, 95%)"}, "style": {"description_width": "9rem"}}


def _by_size(cells: pd.DataFrame) -> Sequence[str]:
    return sorted(set(cells["model"]), key=lambda name: (find_model(name).parameters_b, name))
