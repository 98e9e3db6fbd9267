"""The paper's tables as text: cells of the build's tables, rounded by the one formatter."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd

from hetinfer.errors import InputError
from hetinfer.hardware import configuration_label, short_name
from hetinfer.values import interval_text, number_text, rounded

TextTable = list[list[str]]  # the heads, then one list a row
NOTHING = "–"
PERCENT = 100
RATIO_DECIMALS = 2
HALF_SECOND = 0.5  # the target of the price table that has one, in seconds
FAMILY = "DeepSeek-R1-Distill-"
KINDS = {"mixed": "both", "enterprise": "H100", "consumer": "4090"}
STATISTICS = {
    "throughput_requests_per_s": "throughput",
    "tpot_p50_s": "median TPOT",
    "ttft_p50_s": "median TTFT",
    "ttft_p99_s": "P99 TTFT",
}


def load_paper_tables(build_dir: Path) -> dict[str, TextTable]:
    """Every table of `PAPER_TABLES` from the build's CSV files; InputError where one is missing."""
    return {
        name: make(_load(build_dir / "tables" / f"{source}.csv"))
        for name, (source, make) in PAPER_TABLES.items()
    }


def configurations_table(order: pd.DataFrame) -> TextTable:
    """One row a model: its parameters are its name's; the counts of each card that it ran on."""
    cards = {"h100-pcie": "H100", "rtx-4090": "RTX 4090"}
    rows = []
    for model, group in order.groupby("model", sort=False):
        counts = [
            ", ".join(str(n) for n in sorted(set(group.loc[group["gpu"] == gpu, "gpu_count"])))
            for gpu in cards
        ]
        rows.append([short_name(str(model)), *(text or NOTHING for text in counts)])
    return [["model", *cards.values()], *sorted(rows)]


def shares_table(by_count: pd.DataFrame) -> TextTable:
    """Shares in per cent with intervals: one row a rate, one column a GPU count."""
    ends = ["share", "low", "high"]
    return _by_rate(by_count.assign(**PERCENT * by_count[ends]), "share", decimals=1)


def cost_ratios_table(by_count: pd.DataFrame) -> TextTable:
    """Cost per token over one H100's with intervals: one row a rate, one column a GPU count."""
    return _by_rate(by_count, "cost_ratio", decimals=RATIO_DECIMALS)


def share_errors_table(validated: pd.DataFrame) -> TextTable:
    """What each form misses a share by, in points, for a new model and for a new rate."""
    rows = [
        [form, *(rounded(PERCENT * error, 1) for error in errors)]
        for form, *errors in validated[["form", "model_error", "rate_error"]].itertuples(
            index=False
        )
    ]
    return [["form", "new model", "new rate"], *rows]


def cost_errors_table(validated: pd.DataFrame) -> TextTable:
    """What each form misses a cost by, in per cent: models on both cards, and all models."""
    errors = ["model_error_frac", "rate_error_frac"]
    wide = validated.pivot(index="form", columns="runs", values=errors)
    columns = [(error, runs) for runs in ("pairs", "all") for error in errors]
    rows = [
        [form, *(rounded(PERCENT * wide.loc[form, column], 0) for column in columns)]
        for form in validated["form"].drop_duplicates()
    ]
    return [["form", "new model", "new rate", "model, all", "rate, all"], *rows]


def prices_table(ranked: pd.DataFrame) -> TextTable:
    """In how many pairs the 4090s are chosen, by price list and target: one column a GPU count."""
    kept = ranked[ranked["ttft_target_s"].isin([float("inf"), HALF_SECOND])]
    keys = ["scenario", "ttft_target_s", "gpu_count"]
    sums = kept.groupby(keys, sort=False)[["chosen", "n_pairs"]].sum()
    counts = sorted(kept["gpu_count"].unique())
    rows = []
    for scenario, target in sums.index.droplevel("gpu_count").unique():
        own = sums.loc[(scenario, target)]
        limit = "none" if target > HALF_SECOND else f"{rounded(1000 * target, 0)} ms"
        cells = [f"{own.loc[n, 'chosen']} of {own.loc[n, 'n_pairs']}" for n in counts]
        rows.append([scenario, limit, *cells])
    heads = [configuration_label("rtx-4090", int(n)) for n in counts]
    return [["price list", "target", *heads], *rows]


def targets_table(within: pd.DataFrame) -> TextTable:
    """The rates at which each configuration kept each target of P99 TTFT."""
    targets = [name for name in within if str(name).startswith("within_")]
    every = within[targets].map(str).stack().map(len).max()
    rows = []
    for row in within.fillna("").to_dict("records"):
        name = short_name(row["model"]).removeprefix(FAMILY)
        kept = [str(row[target]) for target in targets]
        texts = ["all" if len(text) == every else text or NOTHING for text in kept]
        rows.append([name, configuration_label(row["gpu"], row["gpu_count"]), *texts])
    heads = [str(target).removeprefix("within_").replace("_", " ") for target in targets]
    return [["model", "cards", *heads], *rows]


def energy_table(ratios: pd.DataFrame) -> TextTable:
    """Tokens per kWh of the H100 over two 4090s: a row a pair of rates, a column a power."""
    powers = list(ratios["power"].drop_duplicates())
    rows = []
    for (own, other), group in ratios.groupby(
        ["rate_requests_per_s", "against_rate_requests_per_s"], sort=False
    ):
        by_power = group.set_index("power")
        cells = [rounded(by_power.loc[power, "value"], RATIO_DECIMALS) for power in powers[:-1]]
        last = by_power.loc[powers[-1]]
        cells.append(_with_interval(last["value"], last["low"], last["high"], decimals=1))
        rows.append([rounded(own, 0), rounded(other, 0), *cells])
    return [["H100 at", "4090s at", *powers], *rows]


def regions_table(regions: pd.DataFrame) -> TextTable:
    """Pairs by how many regions make owned 4090s surely cleaner: all, some, none."""
    keys = ["gpu_count", "model", "rate_requests_per_s"]
    clean_frac = (regions["verdict"] == "cleaner").groupby([regions[k] for k in keys]).mean()
    rows = []
    for count, fractions in clean_frac.groupby(level="gpu_count"):
        everywhere, nowhere = int((fractions == 1).sum()), int((fractions == 0).sum())
        counts = (len(fractions), everywhere, len(fractions) - everywhere - nowhere, nowhere)
        label = configuration_label("rtx-4090", int(str(count)))
        rows.append([label, *(number_text(n) for n in counts)])
    return [["cards", "pairs", "in all", "in some", "in none"], *rows]


def simulator_table(errors: pd.DataFrame) -> TextTable:
    """Median error of simulated statistics in per cent, at rates that no fit saw, by group."""
    seen = errors[errors["set"] == "validation"]
    statistics = list(STATISTICS)
    wide = seen.pivot(index="group", columns="statistic", values="median_frac")
    rows = [
        [group, *(rounded(PERCENT * wide.loc[group, name], 1) for name in statistics)]
        for group in seen["group"].drop_duplicates()
    ]
    return [["runs", *(STATISTICS[name] for name in statistics)], *rows]


def steady_table(costs: pd.DataFrame) -> TextTable:
    """Share and cost in steady state beside those of the study's runs, a row a configuration."""
    columns = {
        "share_study": ("share, run", 2),
        "share_steady": ("steady", 2),
        "cost_usd_per_mtoken_study": ("USD, run", 3),
        "cost_usd_per_mtoken_steady": ("steady", 3),
    }
    rows = [
        [
            short_name(row["model"]).removeprefix(FAMILY),
            configuration_label(row["gpu"], row["gpu_count"]),
            *(rounded(row[name], decimals) for name, (_, decimals) in columns.items()),
        ]
        for row in costs.to_dict("records")
    ]
    return [["model", "cards", *(head for head, _ in columns.values())], *rows]


def sensitivity_table(sensitivity: pd.DataFrame) -> TextTable:
    """Capacity over the fitted one's under each assumption: one column a configuration."""
    kinds = [
        (str(gpu), int(count))
        for gpu, count in sensitivity[["gpu", "gpu_count"]]
        .drop_duplicates()
        .itertuples(index=False)
    ]
    wide = sensitivity.pivot(index="assumption", columns=["gpu", "gpu_count"], values="ratio")
    rows = [
        [assumption, *(rounded(wide.loc[assumption, kind], RATIO_DECIMALS) for kind in kinds)]
        for assumption in sensitivity["assumption"].drop_duplicates()
    ]
    return [["assumption", *(configuration_label(*kind) for kind in kinds)], *rows]


def fleets_table(fleets: pd.DataFrame) -> TextTable:
    """The cheapest fleet's kind and USD per hour, beside H100s alone: a column a price list."""
    lists = list(fleets["prices"].drop_duplicates())
    rows = []
    for (model, mix, latency), group in fleets.groupby(["model", "mix", "latency"], sort=False):
        by_list = group.set_index("prices")
        cells = [
            f"{KINDS[by_list.loc[name, 'kind']]} {rounded(by_list.loc[name, 'best_usd_per_h'], 2)} "
            f"({_dollars(by_list.loc[name, 'enterprise_usd_per_h'])})"
            for name in lists
        ]
        rows.append(
            [str(model).removeprefix(FAMILY), f"{str(mix).removesuffix(' day')}, {latency}", *cells]
        )
    return [["model", "traffic", *lists], *rows]


def _dollars(usd_per_h: float) -> str:
    return NOTHING if math.isnan(usd_per_h) else rounded(usd_per_h, 2)


PAPER_TABLES: Mapping[str, tuple[str, Callable[[pd.DataFrame], TextTable]]] = {
    "configurations": ("run_order", configurations_table),
    "shares": ("share_by_count", shares_table),
    "share_errors": ("share_validation", share_errors_table),
    "cost_ratios": ("cost_ratio_by_count", cost_ratios_table),
    "cost_errors": ("cost_validation", cost_errors_table),
    "prices": ("price_sensitivity", prices_table),
    "targets": ("rates_within_targets", targets_table),
    "energy": ("energy_efficiency", energy_table),
    "regions": ("cleaner_regions", regions_table),
    "simulator-errors": ("simulator_errors", simulator_table),
    "fleets": ("fleet_costs", fleets_table),
    "steady": ("steady_cost", steady_table),
    "sensitivity": ("capacity_sensitivity", sensitivity_table),
}


def _by_rate(table: pd.DataFrame, column: str, *, decimals: int) -> TextTable:
    known = table[table["n_models"] > 1]
    counts = sorted(known["gpu_count"].unique())
    heads = [
        f"{configuration_label('rtx-4090', int(n))} "
        f"({known.loc[known['gpu_count'] == n, 'n_models'].iloc[0]} models)"
        for n in counts
    ]
    rows = []
    for rate, group in known.groupby("rate_requests_per_s"):
        cells = group.set_index("gpu_count")[[column, "low", "high"]]
        texts = [_with_interval(*cells.loc[n], decimals=decimals) for n in counts]
        rows.append([rounded(float(str(rate)), 0), *texts])
    return [["rate", *heads], *rows]


def _with_interval(estimate: float, low: float, high: float, *, decimals: int) -> str:
    return f"{rounded(estimate, decimals)} ({interval_text(low, high, decimals=decimals)})"


def _load(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise InputError(
            "table missing",
            got="no file",
            expected="a table that a chapter saves",
            where=path,
            do="run make reproduce",
        )
    return pd.read_csv(path)
