"""Everything a claim is judged by, loaded once, and the tables that several claims share."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from hetinfer import metrics, published, recorded
from hetinfer.claims.rule import NOISE_SIGMAS
from hetinfer.hardware import configuration_label, load_prices, short_name
from hetinfer.intervals import mean_interval, replicate_noise
from hetinfer.runs import average_replicates, load_recorded
from hetinfer.values import interval_text, rounded

MODEL_14B = published.TABLE_2_MODEL


@dataclass(frozen=True)
class Study:
    """The recorded study with its costs: single runs, cells, Table 2, and what one run's noise is.

    `runs` are single runs, `cells` have replicates averaged, `pairs` compare each 4090 cell with
    the H100's, `table_2` holds the run behind each printed row. `noise` is relative, by column;
    `prices` are in USD per GPU-hour, by GPU. `fleets` is what the chapter on fleets saves (columns
    of `fleet.comparison.compare_fleets`), or nothing where no fleet was simulated.
    """

    runs: pd.DataFrame
    cells: pd.DataFrame
    pairs: pd.DataFrame
    table_2: pd.DataFrame
    printed: pd.DataFrame
    other: pd.DataFrame
    noise: dict[str, float]
    prices: dict[str, float]
    fleets: pd.DataFrame | None = None


def load_study(price_scenario: str = "study-2025", fleets: pd.DataFrame | None = None) -> Study:
    """The study with the prices of one scenario of `data/reference/prices.csv`."""
    prices = load_prices(price_scenario)
    runs = metrics.with_costs(load_recorded(), prices)
    cells = metrics.with_costs(average_replicates(load_recorded()), prices)
    printed = published.load_published_tables()
    return Study(
        runs=runs,
        cells=cells,
        pairs=pair_cells(cells),
        table_2=published.table_2_runs(printed, runs),
        printed=printed,
        other=published.load_published_other(),
        noise={name: replicate_noise(runs, name) for name in recorded.NOISE_COLUMNS},
        prices=prices,
        fleets=fleets,
    )


def load_fleets(build_dir: Path) -> pd.DataFrame | None:
    """What the chapter on fleets saved in a build; nothing where it has not run."""
    path = build_dir / "results" / "fleet-claims.parquet"
    return pd.read_parquet(path) if path.is_file() else None


def pair_cells(cells: pd.DataFrame) -> pd.DataFrame:
    """Each 4090 cell beside the H100's of the same model and rate: share, cost and price ratios."""
    base = cells[(cells["gpu"] == "h100-pcie") & (cells["gpu_count"] == 1)]
    base = base[["model", "rate_requests_per_s", "cost_usd_per_mtoken", "price_usd_per_h"]]
    columns = ["model", "gpu", "gpu_count", "rate_requests_per_s"]
    costs = cells[[*columns, "cost_usd_per_mtoken", "price_usd_per_h"]]
    pairs = metrics.share_table(cells).merge(costs, on=columns)
    pairs = pairs.merge(base, on=["model", "rate_requests_per_s"], suffixes=("", "_h100"))
    return pairs.assign(
        cost_ratio=pairs["cost_usd_per_mtoken"] / pairs["cost_usd_per_mtoken_h100"],
        price_ratio=pairs["price_usd_per_h"] / pairs["price_usd_per_h_h100"],
    )


def labelled(table: pd.DataFrame, value: object, **columns: object) -> pd.DataFrame:
    """Cells of evidence from rows of runs or pairs: factor columns, the cell's name, its value."""
    rate = table["rate_requests_per_s"]
    cells = pd.DataFrame(
        {
            "model": table["model"].map(short_name),
            "GPU count": table["gpu_count"],
            "request rate": rate,
            "value": np.asarray(value, dtype=float),
            **columns,
        }
    )
    configuration = [
        configuration_label(gpu, count)
        for gpu, count in zip(table["gpu"], table["gpu_count"], strict=True)
    ]
    names = pd.Series(configuration, index=table.index) + " at " + rate.map(lambda q: f"{q:g}")
    if cells["model"].nunique() > 1:
        names = cells["model"] + " " + names
    if "run_id" in table and table["replicate"].nunique() > 1:
        names += " r" + table["replicate"].astype(str)
    return cells.assign(cell=names, in_scope=True).reset_index(drop=True)


def beside(cells: pd.DataFrame) -> pd.DataFrame:
    """The same cells, marked as shown beside the scope and not judged."""
    return cells.assign(in_scope=False)


def span(cells: pd.DataFrame, unit: str, decimals: int) -> str:
    """The range of the cells in scope, as text: `51.4 to 100.3 %`."""
    values = cells.loc[cells["in_scope"], "value"]
    low, high = rounded(values.min(), decimals), rounded(values.max(), decimals)
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"


def with_noise(cells: pd.DataFrame, std: npt.ArrayLike) -> pd.DataFrame:
    """The cells with `low` and `high`: each value -+ `NOISE_SIGMAS` standard deviations."""
    half = NOISE_SIGMAS * np.asarray(std)
    return cells.assign(low=cells["value"] - half, high=cells["value"] + half)


def over_models(pairs: pd.DataFrame, values: pd.Series, unit: str, decimals: int) -> str:
    """What all models say at each rate, as text: mean of `values` with its 95 % t interval.

    A model's configurations are averaged first; a rate with one model has no interval.
    """
    means = values.groupby([pairs["rate_requests_per_s"], pairs["model"]]).mean()
    said = []
    for rate, group in means.groupby(level=0):
        mean, low, high = mean_interval(group.to_numpy())
        interval = "" if np.isnan(low) else f" ({interval_text(low, high, decimals=decimals)})"
        said.append(f"{rounded(mean, decimals)}{interval} at {rate:g}")
    models = pairs["model"].nunique()
    return f"mean over {models} models in {unit}, 95 % interval: {', '.join(said)} requests/s"


def bounds(cells: pd.DataFrame, noise_frac: float = 0.0) -> tuple[float, float]:
    """The lowest and highest value of the cells in scope, widened by replicate noise."""
    values = cells.loc[cells["in_scope"], "value"]
    slack = NOISE_SIGMAS * noise_frac
    return float(values.min()) * (1 - slack), float(values.max()) * (1 + slack)
