"""How the study's runs were made, read off the runs: order, arrivals, noise, warm caches."""

import numpy as np
import pandas as pd

from hetinfer.hardware import kv_capacity_tokens, short_name
from hetinfer.intervals import replicate_noise
from hetinfer.runs import CONFIGURATION
from hetinfer.workload import STUDY_SEED, arrival_window_s

NOISE_COLUMNS = (
    "duration_s",
    "throughput_requests_per_s",
    "throughput_tokens_per_s",
    "goodput_requests_per_s",
    "ttft_p50_s",
    "ttft_p90_s",
    "ttft_p99_s",
    "tpot_p50_s",
    "itl_p99_s",
)


def run_order(runs: pd.DataFrame) -> pd.DataFrame:
    """One row a sequence of runs on one server: the rates in the order run, and its minutes.

    A sequence is one replicate of one configuration.
    """
    rows = []
    for key, group in runs.groupby([*CONFIGURATION, "replicate"], sort=False):
        ordered = group.assign(started=pd.to_datetime(group["started"])).sort_values("started")
        span = ordered["started"].iloc[-1] - ordered["started"].iloc[0]
        order = ", ".join(f"{rate:g}" for rate in ordered["rate_requests_per_s"])
        rows.append((*key, order, span.total_seconds() / 60))
    return pd.DataFrame(rows, columns=[*CONFIGURATION, "replicate", "order", "minutes"])


def with_window(runs: pd.DataFrame, seed: int = STUDY_SEED) -> pd.DataFrame:
    """The runs with `window_s`, the sum of their arrival gaps, and `beyond_window_s`, the rest.

    The gaps are those of the seed, replayed; a run shorter than its window disproves it. The drain
    of the statistical models (`drain.py`) starts at the last arrival, a little before its end.
    """
    window = [
        arrival_window_s(prompts, rate, seed)
        for prompts, rate in zip(runs["prompts"], runs["rate_requests_per_s"], strict=True)
    ]
    return runs.assign(window_s=window, beyond_window_s=runs["duration_s"] - window)


def noise_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Relative standard deviation of one run, and the pairs it comes from, by metric."""
    pairs = int((runs["replicate"] == 2).sum())
    return pd.DataFrame(
        {
            "metric": NOISE_COLUMNS,
            "noise_frac": [replicate_noise(runs, column) for column in NOISE_COLUMNS],
            "pairs": pairs,
        }
    )


def replicate_pairs(runs: pd.DataFrame) -> pd.DataFrame:
    """Each cell that was run twice, one row a metric: both values and their relative difference."""
    key = ["model", "gpu", "gpu_count", "rate_requests_per_s"]
    columns = [*key, *NOISE_COLUMNS]
    first, second = (runs.loc[runs["replicate"] == n, columns] for n in (1, 2))
    wide = first.merge(second, on=key, suffixes=("_1", "_2"), validate="one_to_one")
    frames = [
        wide[key].assign(
            metric=name,
            first=wide[f"{name}_1"],
            second=wide[f"{name}_2"],
            difference_frac=wide[f"{name}_2"] / wide[f"{name}_1"] - 1,
        )
        for name in NOISE_COLUMNS
    ]
    return pd.concat(frames, ignore_index=True)


def warm_cache_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Evidence of warm prefix caches: one row a run, with what its server could hold and had seen.

    `kv_capacity_tokens` is what the cards' memory leaves beside the weights; `holds_prompts`
    whether that is more than all of the run's tokens; `first_of_sequence` whether the server had
    not seen the prompts; `expected` is `warm` where it had and holds them, else `cold`;
    `itl_ratio` is P99 over median ITL, which prefills raise and cache hits do not.
    """
    capacity = [
        kv_capacity_tokens(model, gpu, count)
        for model, gpu, count in runs[CONFIGURATION].itertuples(index=False)
    ]
    sequence = runs.groupby([*CONFIGURATION, "replicate"])["started"]
    table = runs.assign(
        kv_capacity_tokens=capacity,
        holds_prompts=np.array(capacity) > runs["input_tokens"] + runs["output_tokens"],
        first_of_sequence=runs["started"] == sequence.transform("min"),
        itl_ratio=runs["itl_p99_s"] / runs["itl_p50_s"],
        many_4090=(runs["gpu"] == "rtx-4090") & (runs["gpu_count"] > 1),
    )
    warm = table["holds_prompts"] & ~table["first_of_sequence"]
    return table.assign(
        expected=np.where(warm, "warm", "cold"), short=runs["model"].map(short_name)
    )


def warm_cache_summary(table: pd.DataFrame) -> pd.DataFrame:
    """Range of `itl_ratio` by expected cache state, multi-GPU 4090 (whose hosts stall) apart."""
    grouped = table.groupby(["many_4090", "expected"])["itl_ratio"]
    return grouped.agg(["size", "min", "median", "max"]).reset_index()


def ttft_by_rate(runs: pd.DataFrame) -> pd.DataFrame:
    """Mean TTFT against rate for each multi-GPU 4090 configuration: its maximum, and if it rises.

    One row a configuration: `rate_of_max`, `max_s`, `at_highest_rate_s`, `monotone` (never falls
    as the rate rises).
    """
    chosen = runs[(runs["gpu"] == "rtx-4090") & (runs["gpu_count"] > 1)]
    rows = []
    for key, group in chosen.groupby(CONFIGURATION, sort=False):
        ordered = group.sort_values("rate_requests_per_s")
        ttft_s = ordered["ttft_mean_s"].to_numpy()
        top = int(ttft_s.argmax())
        rate_of_max = ordered["rate_requests_per_s"].iloc[top]
        rows.append(
            (*key, rate_of_max, ttft_s[top], ttft_s[-1], bool((np.diff(ttft_s) >= 0).all()))
        )
    columns = [*CONFIGURATION, "rate_of_max", "max_s", "at_highest_rate_s", "monotone"]
    return pd.DataFrame(rows, columns=columns)
