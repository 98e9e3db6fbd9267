"""The explorer: Table 2 and its like re-priced, by functions and by sliders over them."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import pandas as pd

from hetinfer import metrics
from hetinfer.errors import InputError
from hetinfer.figures.prices import draw_repriced
from hetinfer.figures.style import styled
from hetinfer.hardware import check_price, configuration_label, find_model, load_prices, short_name
from hetinfer.runs import average_replicates, load_recorded
from hetinfer.values import rounded

H100 = "h100-pcie"
RTX_4090 = "rtx-4090"
HIGHEST_H100_USD_PER_H = 13.0  # a hyperscaler's list price of the dearer SXM card is 12.29
HIGHEST_4090_USD_PER_H = 2.0  # three times the dearest listed; the study's is 0.25
PRICE_STEP_USD_PER_H = 0.01

COLUMNS = [
    "model", "configuration", "rate_requests_per_s", "throughput_tokens_per_s", "ttft_p99_s",
    "cost_usd_per_mtoken", "cost_ratio", "break_even_usd_per_h",
]  # fmt: skip


@dataclass(frozen=True)
class Scenario:
    """What a reader chooses: a model, an offered rate, and both cards' prices per GPU-hour."""

    model: str
    rate_requests_per_s: float
    h100_usd_per_h: float
    rtx_4090_usd_per_h: float

    @property
    def prices(self) -> dict[str, float]:
        """The prices by card, as `metrics.with_costs` takes them; InputError unless positive."""
        chosen = {H100: self.h100_usd_per_h, RTX_4090: self.rtx_4090_usd_per_h}
        return {gpu: check_price(price, where=f"price of {gpu}") for gpu, price in chosen.items()}


def scenario_of(model: str, rate_requests_per_s: float, price_scenario: str) -> Scenario:
    """The scenario with the prices of one price list of `data/reference/prices.csv`."""
    prices = load_prices(price_scenario)
    return Scenario(model, rate_requests_per_s, prices[H100], prices[RTX_4090])


def load_cells() -> pd.DataFrame:
    """Recorded cells, replicates averaged, of the models that ran on both kinds of card."""
    cells = average_replicates(load_recorded())
    both = set(metrics.share_table(cells)["model"])
    return cells[cells["model"].isin(both)].assign(model=lambda t: t["model"].map(short_name))


def reprice(cells: pd.DataFrame, scenario: Scenario) -> pd.DataFrame:
    """The scenario's model at its prices: one row a configuration and rate, the H100 first.

    Columns: model, configuration, rate_requests_per_s, throughput_tokens_per_s, ttft_p99_s,
    cost_usd_per_mtoken, cost_ratio (over the H100's at that rate), and
    break_even_usd_per_h: the price of one 4090 at which its tokens cost what the H100's do,
    p_H100 s / g with s the throughput share and g the GPU count. InputError for an unknown model.
    """
    chosen = cells[cells["model"] == scenario.model]
    if chosen.empty:
        raise InputError(
            "unknown model",
            got=repr(scenario.model),
            expected=f"one of {', '.join(sorted(set(cells['model'])))}",
            where="the scenario",
            do="name a model that ran on both kinds of card",
        )
    keys = ["gpu", "gpu_count", "rate_requests_per_s"]
    priced = metrics.with_costs(chosen, scenario.prices).merge(
        metrics.share_table(chosen)[[*keys, "share"]], on=keys, how="left"
    )
    base = priced[priced["gpu"] == H100].set_index("rate_requests_per_s")["cost_usd_per_mtoken"]
    return priced.assign(
        configuration=[
            configuration_label(gpu, count)
            for gpu, count in zip(priced["gpu"], priced["gpu_count"], strict=True)
        ],
        cost_ratio=priced["cost_usd_per_mtoken"] / priced["rate_requests_per_s"].map(base),
        break_even_usd_per_h=scenario.h100_usd_per_h * priced["share"] / priced["gpu_count"],
    ).sort_values(["gpu", "gpu_count", "rate_requests_per_s"], ignore_index=True)[COLUMNS]


def at_rate(table: pd.DataFrame, rate_requests_per_s: float) -> pd.DataFrame:
    """The rows of one offered rate, cheapest first; InputError lists the rates there are."""
    rows = table[table["rate_requests_per_s"] == rate_requests_per_s]
    if rows.empty:
        raise InputError(
            "unknown rate",
            got=f"{rate_requests_per_s:g}",
            expected=f"one of {', '.join(f'{q:g}' for q in rates(table))}",
            where="the scenario",
            do="name a rate that was run",
        )
    return rows.sort_values("cost_usd_per_mtoken", ignore_index=True)


def rates(table: pd.DataFrame) -> list[float]:
    """The offered rates that were run, rising."""
    return sorted(set(table["rate_requests_per_s"]))


def sentence(table: pd.DataFrame, scenario: Scenario) -> str:
    """The answer in a sentence: the cheapest configuration, its cost, and the H100's."""
    rows = at_rate(table, scenario.rate_requests_per_s)
    best = rows.iloc[0]
    h100 = rows[rows["configuration"] == configuration_label(H100, 1)].iloc[0]
    cheapest = f"At {scenario.rate_requests_per_s:g} requests/s {best['configuration']} is cheapest"
    cost = f"{rounded(best['cost_usd_per_mtoken'], 3)} USD per million tokens"
    if best["configuration"] == h100["configuration"]:
        return f"{cheapest}: {cost}."
    saved = f"{rounded(100 * (1 - best['cost_ratio']), 0)} % below the H100's"
    ttft = f"its P99 TTFT is {rounded(1000 * best['ttft_p99_s'], 0)} ms"
    return (
        f"{cheapest}: {cost}, {saved} {rounded(h100['cost_usd_per_mtoken'], 3)}; {ttft} "
        f"against {rounded(1000 * h100['ttft_p99_s'], 0)} ms."
    )


def table_html(table: pd.DataFrame, scenario: Scenario) -> str:
    """The configurations at the scenario's rate as an HTML table, cheapest first."""
    heads = (
        "configuration", "USD per Mtoken", "over the H100's", "P99 TTFT (ms)", "tokens/s",
        "break-even price of one 4090 (USD/h)",
    )  # fmt: skip
    rows = [
        (
            row["configuration"],
            rounded(row["cost_usd_per_mtoken"], 3),
            f"{rounded(row['cost_ratio'], 2)}x",
            rounded(1000 * row["ttft_p99_s"], 0),
            rounded(row["throughput_tokens_per_s"], 0),
            "" if pd.isna(row["break_even_usd_per_h"]) else rounded(row["break_even_usd_per_h"], 2),
        )
        for row in at_rate(table, scenario.rate_requests_per_s).to_dict("records")
    ]
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows
    )
    return f'<table class="repriced"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def figure_html(table: pd.DataFrame, scenario: Scenario) -> str:
    """The figure of the scenario as an image element, a vector, with its text alternative."""
    buffer = io.BytesIO()
    with styled():
        draw_repriced(table, scenario.rate_requests_per_s).savefig(buffer, format="svg")
    payload = base64.b64encode(buffer.getvalue()).decode()
    label = escape(f"Cost per million tokens against offered rate, {scenario.model}", quote=True)
    return f'<img alt="{label}" style="max-width:100%" src="data:image/svg+xml;base64,{payload}">'


def show_explorer(
    cells: pd.DataFrame, *, model: str, rate_requests_per_s: float, price_scenario: str
) -> Any:
    """Sliders over `reprice`: a widget with the sentence, the figure and the table of the choice.

    Starts from the prices of one scenario of `prices.csv`. Needs a live kernel to move.
    """
    import ipywidgets

    start = scenario_of(model, rate_requests_per_s, price_scenario)
    at_rates = [(f"{q:g}", q) for q in rates(cells)]
    controls = {
        "model": ipywidgets.Dropdown(
            options=_by_size(cells),
            value=model,
            description="model",
            layout=_wide(),
            style=_whole_label(),
        ),
        "rate_requests_per_s": ipywidgets.SelectionSlider(
            options=at_rates,
            value=rate_requests_per_s,
            description="requests/s",
            layout=_wide(),
            style=_whole_label(),
        ),
        "h100_usd_per_h": _price_slider(
            "H100, USD/h", start.h100_usd_per_h, HIGHEST_H100_USD_PER_H
        ),
        "rtx_4090_usd_per_h": _price_slider(
            "4090, USD/h", start.rtx_4090_usd_per_h, HIGHEST_4090_USD_PER_H
        ),
    }
    shown = ipywidgets.HTML()

    def update(_: object = None) -> None:
        scenario = Scenario(**{name: control.value for name, control in controls.items()})
        table = reprice(cells, scenario)
        shown.value = (
            f"<p>{escape(sentence(table, scenario))}</p>"
            f"{figure_html(table, scenario)}{table_html(table, scenario)}"
        )

    for control in controls.values():
        control.observe(update, names="value")
    update()
    return ipywidgets.VBox([*controls.values(), shown])


def _price_slider(label: str, value: float, highest: float) -> Any:
    import ipywidgets

    return ipywidgets.FloatSlider(
        value=value,
        min=PRICE_STEP_USD_PER_H,
        max=highest,
        step=PRICE_STEP_USD_PER_H,
        description=label,
        continuous_update=False,
        layout=_wide(),
        style=_whole_label(),
    )


def _wide() -> dict[str, str]:
    return {"width": "min(32rem, 95%)"}


def _whole_label() -> dict[str, str]:
    return {"description_width": "7rem"}


def _by_size(cells: pd.DataFrame) -> Sequence[str]:
    return sorted(set(cells["model"]), key=lambda name: (find_model(name).parameters_b, name))
