"""What the paper and its repository print, compared cell by cell with the recorded runs."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from hetinfer import metrics
from hetinfer.hardware import load_gpus, load_prices, load_table, load_text_table, short_name
from hetinfer.paths import data_dir
from hetinfer.values import agrees_as_printed, printed_decimals, rounded

PAPER = "paper-table-2"
README = "repository-readme"
# printed column -> column of `metrics.with_costs`, and what to multiply that by
CELL_COLUMNS: dict[str, tuple[str, float]] = {
    "duration_s": ("duration_s", 1),
    "price_usd_per_h": ("price_usd_per_h", 1),
    "cost_usd_per_run": ("cost_usd", 1),
    "cost_usd_per_mtok": ("cost_usd_per_mtoken", 1),
    "total_throughput_tps": ("throughput_tokens_per_s", 1),
    "request_throughput_rps": ("throughput_requests_per_s", 1),
    "ttft_mean_ms": ("ttft_mean_s", 1000),
    "ttft_p50_ms": ("ttft_p50_s", 1000),
    "ttft_p90_ms": ("ttft_p90_s", 1000),
    "ttft_p99_ms": ("ttft_p99_s", 1000),
}
PRINTED_POWER_W = {"1xh100-pcie": 700.0, "2xrtx-4090": 900.0}  # the paper's Table 3, per hour
TABLE_2_MODEL = "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B"
TABLE_3_RUNS = {"1xh100-pcie": 13, "2xrtx-4090": 6}


def load_published_tables() -> pd.DataFrame:
    """Table 2 of the paper and the repository's per-model tables; printed cells as their text.

    `price_usd_per_h` of the paper's rows comes from the table's note and is no cell.
    """
    table = load_text_table(data_dir("published") / "tables.csv")
    table["rate_requests_per_s"] = table["request_rate_qps"].astype(float)
    table["gpu_count"] = table["gpu_count"].astype(int)
    return table


def load_published_other() -> pd.DataFrame:
    """The paper's Tables 1 and 3, the repository's prices, and Figure 1's labels and points."""
    return load_text_table(data_dir("published") / "other.csv")


def compare_cells(published: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """One row a printed cell: printed text, recomputed number, whether they agree, which replicate.

    A printed row is compared with the replicate that it agrees with in most cells, the first on a
    tie. `runs` are single runs with `metrics.with_costs` columns.
    """
    by_cell = runs.assign(short=runs["model"].map(short_name)).set_index(
        ["short", "gpu", "gpu_count", "rate_requests_per_s"]
    )
    frames = []
    for _, row in published.iterrows():
        key = (row["model"], row["gpu"], row["gpu_count"], row["rate_requests_per_s"])
        candidates = [_compare_row(row, run) for _, run in by_cell.loc[[key]].iterrows()]
        frames.append(max(candidates, key=lambda cells: int(cells["agrees"].sum())))
    return pd.concat(frames, ignore_index=True)


def regenerate(cells: pd.DataFrame) -> pd.DataFrame:
    """The printed tables anew: recomputed numbers at the printed precision, in the printed layout.

    `cells` is `compare_cells`; one row a printed row, one column a printed column, as text.
    """
    key = ["source", "model", "row", "rate_requests_per_s", "gpu", "gpu_count"]
    texts = [
        rounded(value, printed_decimals(printed)).replace(",", "")
        for value, printed in zip(cells["recomputed"], cells["printed"], strict=True)
    ]
    wide = cells.assign(text=texts).pivot(index=key, columns="column", values="text")
    order = cells.drop_duplicates(key).set_index(key).index
    columns = [name for name in CELL_COLUMNS if name in wide]
    return wide.loc[order, columns].reset_index()


def count_agreeing(cells: pd.DataFrame) -> pd.DataFrame:
    """Cells and agreeing cells by source and model."""
    grouped = cells.groupby(["source", "model"], sort=False)["agrees"]
    return grouped.agg(cells="size", agreeing="sum").reset_index()


def table_2_runs(published: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """The recorded run behind each of Table 2's twenty rows, with the row's number, in order."""
    cells = compare_cells(published[published["source"] == PAPER], runs)
    which = cells.drop_duplicates("run_id")[["row", "run_id"]].astype({"row": int})
    return which.merge(runs, on="run_id", validate="one_to_one").sort_values(
        "row", ignore_index=True
    )


def rows_printing(printed: str, column: str, table_2: pd.DataFrame) -> list[int]:
    """Numbers of the Table 2 rows whose recomputed `column` agrees with a printed number."""
    hits = table_2[column].map(lambda value: agrees_as_printed(value, printed))
    return list(table_2.loc[hits, "row"])


def untabulated(published: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Recorded cells of the tabulated models that no printed table lists, one row each."""
    keys = ["short", "gpu", "gpu_count", "rate_requests_per_s"]
    listed = set(
        published.rename(columns={"model": "short"})[keys].itertuples(index=False, name=None)
    )
    cells = runs.assign(short=runs["model"].map(short_name)).drop_duplicates(keys)
    cells = cells[cells["short"].isin(published["model"])]
    unlisted = [key not in listed for key in cells[keys].itertuples(index=False, name=None)]
    return cells.loc[unlisted, keys].rename(columns={"short": "model"}).reset_index(drop=True)


@dataclass(frozen=True)
class Recomputed:
    """A printed number's counterpart: its value, None if no data speak to it, and its source."""

    value: float | None
    source: str


def compare_other(other: pd.DataFrame, table_2: pd.DataFrame) -> pd.DataFrame:
    """One row a number of `load_published_other`: recomputed value, agreement, and its source.

    `agrees` is missing where no data of ours speak to the number; `rows_that_print_it` names the
    Table 2 rows whose own number agrees with a figure's label or point.
    """
    recompute: dict[str, Callable[[pd.Series], Recomputed]] = {
        "paper-table-1": _price_source,
        "repository-readme-prices": _price_source,
        "paper-table-3": lambda row: _table_3(row, table_2),
        "paper-figure-1": lambda row: _figure_1(row, table_2),
    }
    rows = []
    for _, row in other.iterrows():
        found = recompute[row["source"]](row)
        agrees = None if found.value is None else agrees_as_printed(found.value, row["value"])
        rows.append(
            {
                **row[["source", "item", "name", "unit"]],
                "printed": row["value"],
                "recomputed": found.value,
                "agrees": agrees,
                "from": found.source,
                "rows_that_print_it": _rows_text(row, table_2),
            }
        )
    return pd.DataFrame(rows).astype({"recomputed": "float64", "agrees": "boolean"})


def _compare_row(row: pd.Series, run: pd.Series) -> pd.DataFrame:
    skipped = {"price_usd_per_h"} if row["source"] == PAPER else set()
    cells = []
    for column, (name, factor) in CELL_COLUMNS.items():
        if column in skipped or not row[column]:
            continue
        value = float(run[name]) * factor
        cells.append(
            {
                **row[["source", "model", "row", "gpu", "gpu_count", "rate_requests_per_s"]],
                "run_id": run["run_id"],
                "replicate": run["replicate"],
                "column": column,
                "printed": row[column],
                "recomputed": value,
                "agrees": agrees_as_printed(value, row[column]),
            }
        )
    return pd.DataFrame(cells)


def _price_source(row: pd.Series) -> Recomputed:
    study = load_prices("study-2025")
    if row["name"] == "alternative providers":
        return Recomputed(study[row["item"]], "price list study-2025 (the paper's own)")
    prices = load_table(data_dir("reference") / "prices.csv")
    listed = prices[(prices["gpu"] == row["item"]) & (prices["market"] == "hyperscaler")]
    if listed.empty:
        return Recomputed(None, "no other price of this card at a hyperscaler is on file")
    first = listed.iloc[0]
    return Recomputed(float(first["price_usd_per_h"]), f"prices.csv: {first['source']}")


def _table_3(row: pd.Series, table_2: pd.DataFrame) -> Recomputed:
    grid = load_table(data_dir("reference") / "grid_intensity.csv").set_index("region")
    grid_g_per_kwh = float(grid.loc["EU27", "g_co2_per_kwh"])
    if row["item"] == "grid":
        return Recomputed(grid_g_per_kwh, "grid_intensity.csv: EU27")
    number = TABLE_3_RUNS[row["item"]]
    speed = float(table_2.set_index("row").loc[number, "throughput_tokens_per_s"])
    power_w = PRINTED_POWER_W[row["item"]]
    # the paper carries its rounded steps on: 10.8 Mtoken/h over 0.7 kWh, then 242 g over 15.4
    per_h = float(rounded(speed * metrics.SECONDS_PER_HOUR / metrics.TOKENS_PER_MTOKEN, 1))
    per_kwh = float(rounded(per_h / (power_w / 1000), 1))
    value = {
        "tokens per second": speed,
        "tokens per hour": per_h,
        "energy per hour": power_w / 1000,
        "tokens per kWh": per_kwh,
        "carbon intensity": grid_g_per_kwh / per_kwh,
    }[row["name"]]
    return Recomputed(value, f"run {number}, {power_w:g} W as printed, rounded steps carried on")


def _figure_1(row: pd.Series, table_2: pd.DataFrame) -> Recomputed:
    is_label = row["unit"] == "USD/Mtoken"
    column = "cost_usd_per_mtoken" if is_label else "throughput_requests_per_s"
    if row["item"] == "4x(2xrtx-4090)":
        return Recomputed(None, "no run of four nodes exists")
    rate = float(str(row["name"]).split(" at ")[1].split(" ")[0])
    gpu_count, gpu = str(row["item"]).split("x", 1)
    match = table_2[
        (table_2["gpu"] == gpu)
        & (table_2["gpu_count"] == int(gpu_count))
        & (table_2["rate_requests_per_s"] == rate)
    ].iloc[0]
    return Recomputed(float(match[column]), f"run {match['row']}")


def _rows_text(row: pd.Series, table_2: pd.DataFrame) -> str:
    if row["source"] != "paper-figure-1":
        return ""
    is_label = row["unit"] == "USD/Mtoken"
    column = "cost_usd_per_mtoken" if is_label else "throughput_requests_per_s"
    hits = rows_printing(row["value"], column, table_2)
    return ", ".join(map(str, hits))


def limit_power_w() -> dict[str, float]:
    """Board power limit of each known GPU in watts."""
    return {name: gpu.tdp_w for name, gpu in load_gpus().items()}
