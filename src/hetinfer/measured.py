"""Runs made with this package, campaign by campaign, with what their servers told of themselves."""

import pandas as pd

from hetinfer.errors import InputError
from hetinfer.hardware import load_table
from hetinfer.paths import data_dir
from hetinfer.runs import campaign_path, load_runs

# columns of a campaign's `cells.csv` beside those of its runs
CELL_COLUMNS = [
    "served_before",
    "prefix_cache_hit_tokens",
    "prefix_cache_query_tokens",
    "energy_gpu_energy_j",
    "energy_gpu_reason",
    "energy_cpu_energy_j",
    "energy_cpu_reason",
]


def load_campaign(name: str) -> pd.DataFrame:
    """The runs of `data/measured/NAME`, with cache hits, energy and the reason where there is none.

    Adds `hit_frac`, the prompt tokens that the server found in its prefix cache over those looked
    up there (0 without a cache), and `itl_ratio`, P99 over median ITL. InputError where the
    campaign has no runs.
    """
    folder = campaign_path(name).parent
    if not campaign_path(name).is_file():
        raise InputError(
            "no measured runs",
            got="no runs.csv",
            expected="what a campaign leaves",
            where=folder,
            do=f"run make measure CAMPAIGN={name}",
        )
    cells = load_table(folder / "cells.csv", text=["energy_gpu_reason", "energy_cpu_reason"])
    runs = load_runs(campaign_path(name))
    joined = runs.merge(cells[["source_file", *CELL_COLUMNS]], on="source_file", validate="1:1")
    asked = joined["prefix_cache_query_tokens"]
    return joined.assign(
        campaign=name,
        hit_frac=(joined["prefix_cache_hit_tokens"] / asked).where(asked > 0, 0.0),
        itl_ratio=joined["itl_p99_s"] / joined["itl_p50_s"],
    )


def load_campaigns() -> pd.DataFrame:
    """Every campaign that has runs, one frame; empty where nothing was measured."""
    folders = sorted(path.parent.name for path in data_dir("measured").glob("*/cells.csv"))
    frames = [load_campaign(name) for name in folders]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def summarise_variants(runs: pd.DataFrame) -> pd.DataFrame:
    """Median over replicates by variant and rate, with the lowest and highest replicate's TTFT.

    Columns: variant, rate_requests_per_s, replicates, ttft_p50_s, ttft_p50_low_s, ttft_p50_high_s,
    ttft_p99_s, itl_ratio, tpot_p50_s, hit_frac, throughput_requests_per_s.
    """
    grouped = runs.groupby(["variant", "rate_requests_per_s"])
    median = ["ttft_p50_s", "ttft_p99_s", "itl_ratio", "tpot_p50_s", "hit_frac"]
    table = grouped[[*median, "throughput_requests_per_s"]].median()
    ttft = grouped["ttft_p50_s"]
    table.insert(0, "replicates", grouped.size())
    return table.assign(ttft_p50_low_s=ttft.min(), ttft_p50_high_s=ttft.max()).reset_index()


def summarise_energy(runs: pd.DataFrame) -> pd.DataFrame:
    """How many runs of each campaign had their energy metered, and why the others had not.

    Columns: campaign, gpu, runs, gpu_metered, gpu_reason, cpu_metered, cpu_reason; a reason is the
    code that `data/measured/README.md` explains.
    """
    rows = []
    for (campaign, gpu), group in runs.groupby(["campaign", "gpu"]):
        row: dict[str, object] = {"campaign": campaign, "gpu": gpu, "runs": len(group)}
        for part in ("gpu", "cpu"):
            row[f"{part}_metered"] = int(group[f"energy_{part}_energy_j"].notna().sum())
            reasons = sorted(set(group[f"energy_{part}_reason"]) - {""})
            row[f"{part}_reason"] = ", ".join(reasons)
        rows.append(row)
    return pd.DataFrame(rows)
