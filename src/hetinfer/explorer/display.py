"""An explored scenario as a person reads it: a sentence, a table, a figure."""

import base64
import io
import math
from collections.abc import Iterable, Sequence
from html import escape

import pandas as pd
from matplotlib.figure import Figure

from hetinfer.explorer.scenario import H100, Scenario, at_rate
from hetinfer.figures.prices import draw_explored
from hetinfer.figures.style import styled
from hetinfer.hardware import configuration_label
from hetinfer.values import interval_text, number_text, rounded

# each column's head, and the class of evidence of its numbers
HEADS = (
    ("configuration", ""),
    ("share of one H100", "recorded"),
    ("tokens/s", "recorded"),
    ("P99 TTFT (ms)", "recorded"),
    ("requests within 2 s", "recorded"),
    ("USD per Mtoken", "recorded, price chosen"),
    ("over the H100's", "recorded, price chosen"),
    ("break-even price of one 4090 (USD/h)", "recorded, price chosen"),
    ("J per token, machine", "reference"),
    ("g CO2e per Mtoken", "reference"),
)


def sentence(table: pd.DataFrame, scenario: Scenario) -> str:
    """The answer in a sentence or two: the cheapest configuration that is in time, the cleanest."""
    rows = at_rate(table, scenario.rate_requests_per_s)
    rows = rows[rows["in_time"]].reset_index(drop=True)
    where = f"At {scenario.rate_requests_per_s:g} requests/s"
    limit = _limit(scenario)
    if rows.empty:
        return f"{where} no configuration keeps its P99 TTFT{limit}."
    best, clean = rows.iloc[0], rows.loc[rows["carbon_g_per_mtoken"].idxmin()]
    cheapest = f"{where} {best['configuration']} is cheapest"
    if limit:
        cheapest += f" of those with P99 TTFT{limit}"
    return f"{cheapest}: {_cost(best, rows)}. {_cleanest(clean, scenario)}"


def table_html(table: pd.DataFrame, scenario: Scenario) -> str:
    """The configurations at the scenario's rate as an HTML table, cheapest first."""
    rows = at_rate(table, scenario.rate_requests_per_s).to_dict("records")
    return html_table(HEADS, [_texts(row, scenario) for row in rows])


def html_table(heads: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]]) -> str:
    """Rows of text as an HTML table; a head is a column's name and its numbers' evidence."""
    head = "".join(
        f'<th scope="col">{escape(text)}<br><small>{evidence}</small></th>'
        for text, evidence in heads
    )
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in texts)}</tr>" for texts in rows
    )
    return f'<table class="repriced"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def figure_html(table: pd.DataFrame, scenario: Scenario) -> str:
    """The figure of the scenario as an image element, a vector, with its text alternative."""
    figure = draw_explored(
        table,
        scenario.rate_requests_per_s,
        ttft_target_s=scenario.ttft_target_s,
        carbon_of=f"{scenario.region}, 4090s {scenario.holding}, power: {scenario.power}",
    )
    label = f"Cost per million tokens, P99 TTFT and carbon against offered rate, {scenario.model}"
    return image(figure, label)


def image(figure: Figure, label: str) -> str:
    """A figure as an image element, a vector, with its text alternative."""
    buffer = io.BytesIO()
    with styled():
        figure.savefig(buffer, format="svg")
    payload = base64.b64encode(buffer.getvalue()).decode()
    return (
        f'<img alt="{escape(label, quote=True)}" style="width:100%;max-width:60rem" '
        f'src="data:image/svg+xml;base64,{payload}">'
    )


def _texts(row: dict[str, object], scenario: Scenario) -> list[str]:
    number = {name: float(str(row[name])) for name in row if name in _NUMBERS}
    even = number["break_even_usd_per_h"]
    low, high = number["carbon_low"], number["carbon_high"]
    late = "" if row["in_time"] else " (too late)"
    grams = number_text(number["carbon_g_per_mtoken"], low=low, high=high)
    return [
        str(row["configuration"]),
        f"{rounded(100 * number['share'], 1)} %",
        rounded(number["throughput_tokens_per_s"], 0),
        f"{rounded(1000 * number['ttft_p99_s'], 0)}{late}",
        f"{rounded(100 * number['in_time_frac'], 0)} %",
        rounded(number["cost_usd_per_mtoken"], 3),
        f"{rounded(number['cost_ratio'], 2)}x",
        "" if math.isnan(even) else rounded(even, 2),
        rounded(number["energy_j_per_token"], 2),
        f"{grams} ({interval_text(low, high)})",
    ]


_NUMBERS = {
    "share", "throughput_tokens_per_s", "ttft_p99_s", "in_time_frac", "cost_usd_per_mtoken",
    "cost_ratio", "break_even_usd_per_h", "energy_j_per_token", "carbon_g_per_mtoken",
    "carbon_low", "carbon_high",
}  # fmt: skip


def _limit(scenario: Scenario) -> str:
    if math.isinf(scenario.ttft_target_s):
        return ""
    return f" within {rounded(1000 * scenario.ttft_target_s, 0)} ms"


def _cost(best: "pd.Series[float]", rows: pd.DataFrame) -> str:
    cost = f"{rounded(best['cost_usd_per_mtoken'], 3)} USD per million tokens"
    h100 = rows[rows["configuration"] == configuration_label(H100, 1)]
    if h100.empty or best["configuration"] == h100["configuration"].iloc[0]:
        return cost
    saved = f"{rounded(100 * (1 - best['cost_ratio']), 0)} % below the H100's"
    ttft = f"its P99 TTFT is {rounded(1000 * best['ttft_p99_s'], 0)} ms"
    return (
        f"{cost}, {saved} {rounded(h100['cost_usd_per_mtoken'].iloc[0], 3)}; {ttft} "
        f"against {rounded(1000 * h100['ttft_p99_s'].iloc[0], 0)} ms"
    )


def _cleanest(row: "pd.Series[float]", scenario: Scenario) -> str:
    low, high = float(row["carbon_low"]), float(row["carbon_high"])
    grams = number_text(float(row["carbon_g_per_mtoken"]), low=low, high=high)
    return (
        f"Cleanest by the middle of the estimates is {row['configuration']} on the grid of "
        f"{scenario.region}: {grams} ({interval_text(low, high)}) g CO2e per million tokens."
    )
