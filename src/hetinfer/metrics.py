"""Definitions of what is measured, each with its formula; for numbers, arrays and columns alike.

Symbols: N requests completed, T duration of the run in s, I and O input and output tokens,
p price in USD per GPU-hour, g GPU count, P board power in W, q offered rate in requests per s.
The study defines throughput as N/T, goodput as (N with TTFT within its target)/T, and cost from
T, p and g (its repository's README and the note under its Table 2); energy and carbon per token are
its Table 3's.
"""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from hetinfer.errors import InputError
from hetinfer.runs import CONFIGURATION

Numbers: TypeAlias = Any  # a float, an array or a frame's column; the same shape comes out

SECONDS_PER_HOUR = 3600.0
TOKENS_PER_MTOKEN = 1e6
JOULES_PER_KWH = 3.6e6


def throughput_requests_per_s(completed: Numbers, duration_s: Numbers) -> Numbers:
    """Requests completed per second: N / T."""
    return completed / duration_s


def throughput_tokens_per_s(
    input_tokens: Numbers, output_tokens: Numbers, duration_s: Numbers
) -> Numbers:
    """Tokens per second, input and output together: (I + O) / T."""
    return (input_tokens + output_tokens) / duration_s


def goodput_requests_per_s(
    ttft_s: npt.NDArray[np.float64],
    duration_s: float,
    *,
    ttft_target_s: float,
    tpot_s: npt.NDArray[np.float64] | None = None,
    tpot_target_s: float = np.inf,
) -> float:
    """Requests per second that meet their targets: #{i: TTFT_i <= target, TPOT_i <= target} / T.

    `ttft_s` and `tpot_s` have shape (n_requests,). The study's target is TTFT <= 2 s alone.
    """
    good = ttft_s <= ttft_target_s
    if tpot_s is not None:
        good &= tpot_s <= tpot_target_s
    return float(np.count_nonzero(good)) / duration_s


def latency_percentile_s(values_s: npt.NDArray[np.float64], percent: float) -> float:
    """The `percent`-th percentile of latencies (n,), linear between order statistics, as vLLM's."""
    if values_s.size == 0:
        raise InputError(
            "no latencies",
            got="0 values",
            expected="at least one",
            where="latency_percentile_s",
            do="check that requests completed",
        )
    return float(np.percentile(values_s, percent))


def cost_usd(duration_s: Numbers, gpu_count: Numbers, price_usd_per_h: Numbers) -> Numbers:
    """Rental cost of a run in USD: p g T / 3600."""
    return price_usd_per_h * gpu_count * duration_s / SECONDS_PER_HOUR


def cost_usd_per_mtoken(
    throughput_tokens_per_s: Numbers, gpu_count: Numbers, price_usd_per_h: Numbers
) -> Numbers:
    """USD per million tokens: p g / (3600 X) 10^6, X the tokens per second (total, or output only).

    Equal to `cost_usd` of the run over its tokens.
    """
    per_token = price_usd_per_h * gpu_count / SECONDS_PER_HOUR / throughput_tokens_per_s
    return per_token * TOKENS_PER_MTOKEN


def throughput_per_usd(
    throughput_tokens_per_s: Numbers, gpu_count: Numbers, price_usd_per_h: Numbers
) -> Numbers:
    """Tokens per USD: 3600 X / (p g)."""
    return SECONDS_PER_HOUR * throughput_tokens_per_s / (price_usd_per_h * gpu_count)


def energy_j_per_token(power_w: Numbers, throughput_tokens_per_s: Numbers) -> Numbers:
    """Energy per token in joules: P / X, with P the power of all the configuration's boards."""
    return power_w / throughput_tokens_per_s


def mtoken_per_kwh(power_w: Numbers, throughput_tokens_per_s: Numbers) -> Numbers:
    """Million tokens per kilowatt-hour: 3.6 X / P."""
    return JOULES_PER_KWH / TOKENS_PER_MTOKEN / energy_j_per_token(power_w, throughput_tokens_per_s)


def carbon_g_per_mtoken(
    power_w: Numbers, throughput_tokens_per_s: Numbers, grid_g_per_kwh: Numbers
) -> Numbers:
    """Operational carbon in g CO2e per million tokens: grid intensity over `mtoken_per_kwh`."""
    return grid_g_per_kwh / mtoken_per_kwh(power_w, throughput_tokens_per_s)


def price_of(runs: pd.DataFrame, prices: dict[str, float]) -> pd.Series:
    """The price in USD per GPU-hour of each run's GPU; InputError where the list lacks one."""
    missing = sorted(set(runs["gpu"]) - set(prices))
    if missing:
        raise InputError(
            "no price",
            got=f"none for {', '.join(missing)}",
            expected=f"a price for every GPU (there are {', '.join(prices)})",
            where="the price list",
            do="add it to data/reference/prices.csv or name it on the command line",
        )
    return runs["gpu"].map(prices)


def with_costs(runs: pd.DataFrame, prices: dict[str, float]) -> pd.DataFrame:
    """The runs with cost per run, per million tokens (total, output, good), and tokens per USD.

    A good token is one of a request that met the study's TTFT target; its count is the run's tokens
    times goodput over throughput, since the files do not say which requests were good.
    """
    price = price_of(runs, prices)
    count = runs["gpu_count"]
    total = runs["throughput_tokens_per_s"]
    good_frac = runs["goodput_requests_per_s"] / runs["throughput_requests_per_s"]
    per_mtoken = cost_usd_per_mtoken(total, count, price)
    with np.errstate(divide="ignore"):
        per_good = per_mtoken / good_frac
    return runs.assign(
        price_usd_per_h=price * count,
        cost_usd=cost_usd(runs["duration_s"], count, price),
        cost_usd_per_mtoken=per_mtoken,
        cost_usd_per_output_mtoken=cost_usd_per_mtoken(
            runs["output_throughput_tokens_per_s"], count, price
        ),
        cost_usd_per_good_mtoken=per_good,
        tokens_per_usd=throughput_per_usd(total, count, price),
    )


def share_table(runs: pd.DataFrame, baseline: tuple[str, int] = ("h100-pcie", 1)) -> pd.DataFrame:
    """Throughput share of every other configuration over the baseline: X / X_baseline.

    One row a pair of the same model and offered rate, with as many prompts of the same data set;
    `runs` has one row a cell (average replicates first). Columns: model, gpu, gpu_count,
    rate_requests_per_s, share, and both throughputs. A model without a baseline run has no pair;
    InputError if none has.
    """
    keys = ["model", "rate_requests_per_s", "dataset", "prompts"]
    columns = [*CONFIGURATION, *keys[1:], "throughput_tokens_per_s"]
    is_baseline = (runs["gpu"] == baseline[0]) & (runs["gpu_count"] == baseline[1])
    base = runs.loc[is_baseline, [*keys, "throughput_tokens_per_s"]].rename(
        columns={"throughput_tokens_per_s": "baseline_tokens_per_s"}
    )
    others = runs.loc[runs["gpu"] != baseline[0], columns]
    if base.duplicated(keys).any():
        raise InputError(
            "several runs of one cell",
            got=f"{baseline[1]}x{baseline[0]} more than once at one rate",
            expected="one row a cell",
            where="share_table",
            do="average them first (average_replicates)",
        )
    pairs = others.merge(base, on=keys, validate="many_to_one").drop(columns=["dataset", "prompts"])
    if pairs.empty:
        raise InputError(
            "no pair of runs",
            got="none",
            expected=f"one model under one load on {baseline[1]}x{baseline[0]} and on another GPU",
            where="share_table",
            do="add the partner's runs",
        )
    return pairs.assign(share=pairs["throughput_tokens_per_s"] / pairs["baseline_tokens_per_s"])


def rates_within(cells: pd.DataFrame, targets_s: list[float]) -> pd.DataFrame:
    """The offered rates at which P99 TTFT stayed within each target, one row a configuration.

    One column a target, named `within_500_ms`, with the rates as text (empty: none). The rates need
    not be a range: a host that stalls misses its target at low load first.
    """
    rows = []
    for key, group in cells.groupby(CONFIGURATION, sort=False):
        ordered = group.sort_values("rate_requests_per_s")
        row = dict(zip(CONFIGURATION, key, strict=True))
        for target_s in targets_s:
            inside = ordered.loc[ordered["ttft_p99_s"] <= target_s, "rate_requests_per_s"]
            row[f"within_{1000 * target_s:g}_ms"] = ", ".join(f"{rate:g}" for rate in inside)
        rows.append(row)
    return pd.DataFrame(rows)


def latency_summary(runs: pd.DataFrame) -> pd.DataFrame:
    """Latency and goodput of measured runs: median over replicates of each cell, in seconds.

    Columns: campaign, model, variant, gpu, gpu_count, rate_requests_per_s, replicates, and medians
    of P50 and P99 TTFT, median TPOT, throughput and goodput.
    """
    key = ["campaign", "model", "variant", "gpu", "gpu_count", "rate_requests_per_s"]
    columns = ["ttft_p50_s", "ttft_p99_s", "tpot_p50_s"]
    columns += ["throughput_requests_per_s", "goodput_requests_per_s"]
    grouped = runs.groupby(key, sort=True)
    table = grouped[columns].median()
    table.insert(0, "replicates", grouped.size())
    return table.reset_index()
