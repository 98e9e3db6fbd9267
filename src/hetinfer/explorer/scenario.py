"""What a reader chooses, and what the recorded runs are then worth: cost, latency, carbon."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import pandas as pd

from hetinfer import metrics
from hetinfer.errors import InputError
from hetinfer.footprint.carbon import (
    HOLDINGS,
    Holding,
    Machine,
    embodied_g_per_mtoken,
    known_machine,
    kwh_per_mtoken,
    sample_machine,
    sample_utilisation,
)
from hetinfer.footprint.grid import find_grid
from hetinfer.footprint.inputs import Array, interval
from hetinfer.footprint.power import POWER_ASSUMPTIONS, PowerAssumption
from hetinfer.hardware import check_price, configuration_label, load_prices, short_name
from hetinfer.runs import average_replicates, load_recorded

H100 = "h100-pcie"
RTX_4090 = "rtx-4090"
N_SAMPLES = 2_000  # an interval's ends move by less than a per cent, and a slider does not wait
SEED = 0

COLUMNS = [
    "model", "configuration", "rate_requests_per_s", "throughput_tokens_per_s", "share",
    "ttft_p99_s", "in_time_frac", "cost_usd_per_mtoken", "cost_ratio", "break_even_usd_per_h",
]  # fmt: skip


@dataclass(frozen=True)
class Scenario:
    """What a reader chooses: model and offered rate, both cards' prices per GPU-hour, the target.

    `ttft_target_s` is of the P99 time to first token, infinite for none; `holding` is how the 4090s
    are held (H100s are new). Only a plan takes up the last two: `available_frac` is the share of
    time that a 4090 is there, `mix` the parts of the requests by class of `fleet.scenarios`,
    whatever their sum.
    """

    model: str
    rate_requests_per_s: float
    h100_usd_per_h: float
    rtx_4090_usd_per_h: float
    ttft_target_s: float = np.inf
    region: str = "EU27"
    power: PowerAssumption = "measured draw"
    holding: Holding = "owned"
    available_frac: float = 1.0
    mix: Mapping[str, float] = field(default_factory=lambda: {"chat": 1.0})

    @property
    def prices(self) -> dict[str, float]:
        """The prices by card, as `metrics.with_costs` takes them; InputError unless positive."""
        chosen = {H100: self.h100_usd_per_h, RTX_4090: self.rtx_4090_usd_per_h}
        return {gpu: check_price(price, where=f"price of {gpu}") for gpu, price in chosen.items()}


def scenario_of(
    model: str,
    rate_requests_per_s: float,
    price_scenario: str,
    *,
    ttft_target_s: float = np.inf,
    region: str = "EU27",
    mix: Mapping[str, float] | None = None,
) -> Scenario:
    """The scenario with the prices of one price list of `data/reference/prices.csv`.

    Without a mix, all requests are chat.
    """
    prices = load_prices(price_scenario)
    scenario = Scenario(
        model, rate_requests_per_s, prices[H100], prices[RTX_4090], ttft_target_s, region
    )
    return scenario if mix is None else replace(scenario, mix=mix)


def load_cells() -> pd.DataFrame:
    """Recorded cells, replicates averaged, of the models that ran on both kinds of card."""
    cells = average_replicates(load_recorded())
    both = set(metrics.share_table(cells)["model"])
    return cells[cells["model"].isin(both)].assign(model=lambda t: t["model"].map(short_name))


def explore(cells: pd.DataFrame, scenario: Scenario) -> pd.DataFrame:
    """`reprice` with what the scenario's target, power, grid and holding make of each row.

    Adds in_time (whether P99 TTFT keeps the target), energy_j_per_token of the whole machine,
    carbon_g_per_mtoken (operational and embodied), carbon_low and carbon_high (95 % of samples).
    InputError for a model, region, power or holding that is not known, or a target not above 0.
    """
    _check_choices(scenario)
    table = reprice(cells, scenario)
    footprints = pd.concat([_footprint(rows, scenario) for _, rows in table.groupby("gpu")])
    in_time = table["ttft_p99_s"] <= scenario.ttft_target_s
    return table.join(footprints).assign(in_time=in_time)


def reprice(cells: pd.DataFrame, scenario: Scenario) -> pd.DataFrame:
    """The scenario's model at its prices: one row a configuration and rate, the H100 first.

    Columns: those of `COLUMNS`, gpu and gpu_count. share and cost_ratio are over the H100's at that
    rate (share 1 for it), in_time_frac counts requests within the study's own target of 2 s, and
    break_even_usd_per_h is the price of one 4090 at which its tokens cost what the H100's do,
    p_H100 s / g with s the share and g the GPU count. InputError for an unknown model.
    """
    chosen = cells[cells["model"] == scenario.model]
    if chosen.empty:
        raise _choice_error("unknown model", scenario.model, sorted(set(cells["model"])))
    keys = ["gpu", "gpu_count", "rate_requests_per_s"]
    priced = metrics.with_costs(chosen, scenario.prices).merge(
        metrics.share_table(chosen)[[*keys, "share"]], on=keys, how="left"
    )
    base = priced[priced["gpu"] == H100].set_index("rate_requests_per_s")["cost_usd_per_mtoken"]
    labels = [
        configuration_label(gpu, count)
        for gpu, count in zip(priced["gpu"], priced["gpu_count"], strict=True)
    ]
    return priced.assign(
        configuration=labels,
        in_time_frac=priced["goodput_requests_per_s"] / priced["throughput_requests_per_s"],
        cost_ratio=priced["cost_usd_per_mtoken"] / priced["rate_requests_per_s"].map(base),
        break_even_usd_per_h=scenario.h100_usd_per_h * priced["share"] / priced["gpu_count"],
        share=priced["share"].fillna(1.0),
    ).sort_values(keys, ignore_index=True)[[*COLUMNS, "gpu", "gpu_count"]]


def at_rate(table: pd.DataFrame, rate_requests_per_s: float) -> pd.DataFrame:
    """The rows of one offered rate, cheapest first; InputError lists the rates there are."""
    rows = table[table["rate_requests_per_s"] == rate_requests_per_s]
    if rows.empty:
        known = [f"{q:g}" for q in rates(table)]
        raise _choice_error("unknown rate", f"{rate_requests_per_s:g}", known)
    return rows.sort_values("cost_usd_per_mtoken", ignore_index=True)


def rates(table: pd.DataFrame) -> list[float]:
    """The offered rates that were run, rising."""
    return sorted(set(table["rate_requests_per_s"]))


def _footprint(rows: pd.DataFrame, scenario: Scenario) -> pd.DataFrame:
    gpu = str(rows["gpu"].iloc[0])
    machine = _machines(scenario.power)[gpu]
    served = (rows["gpu_count"], rows["throughput_tokens_per_s"])
    kwh = kwh_per_mtoken(machine, *served)
    holding: Holding = "new" if gpu == H100 else scenario.holding
    made_g = embodied_g_per_mtoken(machine, *served, holding=holding)
    low, middle, high = interval(made_g + kwh * find_grid(scenario.region).g_co2_per_kwh)
    per_token = metrics.JOULES_PER_KWH / metrics.TOKENS_PER_MTOKEN
    columns = {
        "energy_j_per_token": per_token * np.median(kwh, axis=-1),
        "carbon_g_per_mtoken": middle,
        "carbon_low": low,
        "carbon_high": high,
    }
    return pd.DataFrame(columns, index=rows.index)


@cache
def _machines(power: PowerAssumption) -> dict[str, Machine[Array]]:
    rng = np.random.default_rng(SEED)
    utilisation_frac = sample_utilisation(N_SAMPLES, rng)
    return {
        gpu: sample_machine(known_machine(gpu, power), utilisation_frac, rng)
        for gpu in (H100, RTX_4090)
    }


def _check_choices(scenario: Scenario) -> None:
    if not scenario.ttft_target_s > 0:
        raise _choice_error("target not positive", scenario.ttft_target_s, ["seconds above 0"])
    if scenario.power not in POWER_ASSUMPTIONS:
        raise _choice_error("unknown power assumption", scenario.power, POWER_ASSUMPTIONS)
    if scenario.holding not in HOLDINGS:
        raise _choice_error("unknown holding", scenario.holding, HOLDINGS)
    if not 0 < scenario.available_frac <= 1:
        raise _choice_error("availability", scenario.available_frac, ["above 0, to 1"])


def _choice_error(what: str, got: object, known: Iterable[str]) -> InputError:
    listed = ", ".join(known)
    return InputError(
        what, got=repr(got), expected=f"one of {listed}", where="the scenario", do="choose one"
    )
