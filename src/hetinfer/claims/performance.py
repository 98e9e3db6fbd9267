"""Evidence on throughput, latency, saturation, goodput, parallelism and batch work."""

import numpy as np
import pandas as pd

from hetinfer.claims.rule import Claim, Finding, bears_out, near, up_to
from hetinfer.claims.study import (
    MODEL_14B,
    Study,
    beside,
    bounds,
    labelled,
    over_models,
    span,
    with_noise,
)
from hetinfer.published import rows_printing
from hetinfer.recorded import ttft_by_rate
from hetinfer.values import rounded

NO_SCALE_OUT = (
    "no run of several nodes exists; the printed figure is arithmetic on single-node runs"
)


def s01(claim: Claim, study: Study) -> Finding:
    """Share of 4x4090 over one H100, in per cent, every model with 4x4090 runs."""
    pairs = study.pairs[study.pairs["gpu_count"] == 4]
    noise = np.sqrt(2) * study.noise["throughput_tokens_per_s"]
    cells = labelled(pairs, 100 * pairs["share"])
    cells["holds"] = bears_out(cells["value"], low=claim.low, high=claim.high, noise_frac=noise)
    note = over_models(pairs, 100 * pairs["share"], "%", 1)
    cells = with_noise(cells, noise * cells["value"])
    return Finding(cells, span(cells, "%", 1), bounds=bounds(cells, noise), note=note)


def s05(claim: Claim, study: Study) -> Finding:
    """H100 throughput over each 4090 configuration's, 14B."""
    pairs = study.pairs[study.pairs["model"] == MODEL_14B]
    noise = np.sqrt(2) * study.noise["throughput_tokens_per_s"]
    cells = labelled(pairs, 1 / pairs["share"])
    cells["holds"] = up_to(cells["value"], claim.high, noise_frac=noise)
    four = study.pairs[study.pairs["gpu_count"] == 4]
    note = f"over 4x 4090, {over_models(four, 1 / four['share'], 'x', 2)}"
    recomputed = f"up to {rounded(cells['value'].max(), 2)}x"
    cells = with_noise(cells, noise * cells["value"])
    return Finding(cells, recomputed, bounds=bounds(cells, noise), note=note)


def s06(claim: Claim, study: Study) -> Finding:
    """P99 TTFT of 14B on one H100 in ms, every rate and replicate."""
    cells = _h100_ttft_p99(claim, study, MODEL_14B, study.runs["rate_requests_per_s"].max())
    note = (
        "the runs at 16 requests/s and less replay prompts that their server already holds; what "
        "new prompts would meet in steady state is a matter for simulation"
    )
    noise = study.noise["ttft_p99_s"]
    return Finding(cells, span(cells, "ms", 0), bounds=bounds(cells, noise), note=note)


def s07(claim: Claim, study: Study) -> Finding:
    """P90 and P99 TTFT of 14B on the 4090 configurations in ms, every rate."""
    runs = study.cells[(study.cells["model"] == MODEL_14B) & (study.cells["gpu"] == "rtx-4090")]
    frames = []
    for percent in (90, 99):
        column = f"ttft_p{percent}_s"
        part = labelled(runs, 1000 * runs[column], percentile=float(percent))
        part["holds"] = bears_out(
            part["value"], low=claim.low, high=claim.high, noise_frac=study.noise[column]
        )
        frames.append(part.assign(cell=part["cell"] + f" P{percent}"))
    cells = pd.concat(frames, ignore_index=True)
    inside = int(cells["holds"].sum())
    recomputed = f"{inside} of {len(cells)} cells inside; {span(cells, 'ms', 0)}"
    return Finding(cells, recomputed, bounds=bounds(cells, study.noise["ttft_p99_s"]))


def s14(_: Claim, study: Study) -> Finding:
    """Four times the 2x4090 run at 4 requests/s."""
    rate = 4 * _row(study, 6, "throughput_requests_per_s")
    return _arithmetic(f"4 x run 6 = {rounded(rate, 1)} requests/s")


def s15(_: Claim, study: Study) -> Finding:
    """That over run 13."""
    ratio = (
        4
        * _row(study, 6, "throughput_requests_per_s")
        / _row(study, 13, "throughput_requests_per_s")
    )
    return _arithmetic(f"4 x run 6 over run 13 = {rounded(ratio, 2)}x")


def s16(_: Claim, study: Study) -> Finding:
    """Cost per token of the 2x4090 run at 4 requests/s, which four of them share."""
    return _arithmetic(f"run 6: {rounded(_row(study, 6, 'cost_usd_per_mtoken'), 3)} USD/Mtoken")


def s17(_: Claim, study: Study) -> Finding:
    """Request throughput of 14B on one H100 at 16 and 32 requests/s."""
    return _plateau(study, gpu_count=1, gpu="h100-pcie", rates=(16, 32), printed="7.8")


def s18(claim: Claim, study: Study) -> Finding:
    """Achieved over offered rate of 14B on one H100, up to 8 requests/s, in per cent."""
    runs = _runs(study, "h100-pcie", 1, (1, 4, 8))
    cells = labelled(runs, 100 * runs["throughput_requests_per_s"] / runs["rate_requests_per_s"])
    noise = study.noise["throughput_requests_per_s"]
    cells["holds"] = bears_out(cells["value"], low=claim.low, noise_frac=noise)
    note = (
        "a run of 200 requests ends with a drain, so its achieved rate falls short by construction"
    )
    return Finding(cells, span(cells, "%", 0), bounds=bounds(cells, noise), note=note)


def s19(_: Claim, study: Study) -> Finding:
    """Request throughput of 14B on 2x4090 at 4 requests/s."""
    return _plateau(study, gpu_count=2, gpu="rtx-4090", rates=(4,), printed="3.2")


def s20(_: Claim, study: Study) -> Finding:
    """Request throughput of 14B on 2x4090 at 16 and 32 requests/s."""
    return _plateau(study, gpu_count=2, gpu="rtx-4090", rates=(16, 32), printed="3.9")


def s21(claim: Claim, study: Study) -> Finding:
    """Throughput of 4x4090 over 2x4090 less one, in per cent, 14B."""
    two = _runs(study, "rtx-4090", 2)
    four = _runs(study, "rtx-4090", 4).merge(two, on="rate_requests_per_s", suffixes=("", "_two"))
    gain = four["throughput_requests_per_s"] / four["throughput_requests_per_s_two"] - 1
    cells = labelled(four, 100 * gain)
    noise_points = 100 * np.sqrt(2) * study.noise["throughput_requests_per_s"]
    cells["holds"] = cells["value"] <= float(claim.high) + 2 * noise_points
    return Finding(cells, span(cells, "%", 1), bounds=bounds(cells))


def s30(claim: Claim, study: Study) -> Finding:
    """P99 TTFT of 14B on one H100 in ms up to 16 requests/s; other models beside it."""
    cells = _h100_ttft_p99(claim, study, MODEL_14B, 16)
    on_one = study.runs[(study.runs["gpu"] == "h100-pcie") & (study.runs["gpu_count"] == 1)]
    others = [
        beside(_h100_ttft_p99(claim, study, model, 16))
        for model in on_one["model"].unique()
        if model != MODEL_14B
    ]
    outside = pd.concat(others, ignore_index=True)
    over = outside.loc[~outside["holds"], "model"].unique()
    note = f"other models that exceed it at some rate up to 16: {', '.join(over) or 'none'}"
    noise = study.noise["ttft_p99_s"]
    every = pd.concat([cells, outside], ignore_index=True)
    return Finding(every, span(cells, "ms", 0), bounds=bounds(cells, noise), note=note)


def s34(_: Claim, study: Study) -> Finding:
    """Goodput at a TTFT target of 2 s, every run, in requests/s."""
    runs = study.runs
    cells = labelled(runs, runs["goodput_requests_per_s"])
    cells["holds"] = np.isfinite(cells["value"])
    missed = int((runs["goodput_requests_per_s"] < runs["throughput_requests_per_s"]).sum())
    recomputed = f"{int(cells['holds'].sum())} of {len(runs)} runs; some request missed in {missed}"
    return Finding(cells, recomputed, bounds=bounds(cells))


def s35(_: Claim, study: Study) -> Finding:
    """Whether mean TTFT rises with the rate on each multi-GPU 4090 configuration; its top in ms."""
    table = ttft_by_rate(study.cells)
    at_lowest = int((table["rate_of_max"] == study.cells["rate_requests_per_s"].min()).sum())
    cells = labelled(
        table.rename(columns={"rate_of_max": "rate_requests_per_s"}), 1000 * table["max_s"]
    )
    cells["cell"] = cells["cell"].str.replace(" at ", ", maximum at ")
    cells["holds"] = table["monotone"]
    recomputed = (
        f"{int(table['monotone'].sum())} of {len(table)} monotone; maximum at 1 request/s "
        f"on {at_lowest}, at 32 on {int((table['rate_of_max'] == 32).sum())}"
    )
    return Finding(cells, recomputed, bounds=bounds(cells))


def s36(_: Claim, study: Study) -> Finding:
    """Throughput of more cards over fewer, same model and rate, 4090."""
    runs = study.cells[study.cells["gpu"] == "rtx-4090"]
    key = ["model", "rate_requests_per_s"]
    pairs = runs.merge(runs, on=key, suffixes=("", "_fewer"))
    pairs = pairs[pairs["gpu_count"] > pairs["gpu_count_fewer"]]
    ratio = pairs["throughput_requests_per_s"] / pairs["throughput_requests_per_s_fewer"]
    noise = np.sqrt(2) * study.noise["throughput_requests_per_s"]
    cells = labelled(pairs, ratio)
    cells["cell"] += " over " + pairs["gpu_count_fewer"].astype(str).to_numpy() + "x"
    cells["holds"] = cells["value"] < 1 - 2 * noise
    recomputed = (
        f"{int(cells['holds'].sum())} of {len(cells)} cells; lowest {rounded(ratio.min(), 2)}x"
    )
    return Finding(cells, recomputed, bounds=bounds(cells, noise), any_cell=True)


def s37(_: Claim, study: Study) -> Finding:
    """Tokens per second of one stream (1 / median TPOT) of 14B on the 4090s at 16 and 32."""
    runs = study.cells[
        (study.cells["model"] == MODEL_14B)
        & (study.cells["gpu"] == "rtx-4090")
        & (study.cells["rate_requests_per_s"] >= 16)
    ]
    cells = labelled(runs, 1 / runs["tpot_p50_s"], tpot_p50_ms=1000 * runs["tpot_p50_s"])
    cells["holds"] = cells["value"] >= 5
    recomputed = f"median {span(cells, 'tokens/s', 1)} a stream"
    return Finding(cells, recomputed, bounds=bounds(cells, study.noise["tpot_p50_s"]))


def _h100_ttft_p99(claim: Claim, study: Study, model: str, highest_rate: float) -> pd.DataFrame:
    runs = study.runs[
        (study.runs["model"] == model)
        & (study.runs["gpu"] == "h100-pcie")
        & (study.runs["gpu_count"] == 1)
        & (study.runs["rate_requests_per_s"] <= highest_rate)
    ]
    cells = labelled(runs, 1000 * runs["ttft_p99_s"])
    holds = bears_out(cells["value"], high=claim.high, noise_frac=study.noise["ttft_p99_s"])
    return cells.assign(holds=holds)


def _runs(
    study: Study, gpu: str, gpu_count: int, rates: tuple[float, ...] | None = None
) -> pd.DataFrame:
    runs = study.runs[
        (study.runs["model"] == MODEL_14B)
        & (study.runs["gpu"] == gpu)
        & (study.runs["gpu_count"] == gpu_count)
    ]
    return runs if rates is None else runs[runs["rate_requests_per_s"].isin(rates)]


def _plateau(
    study: Study, *, gpu: str, gpu_count: int, rates: tuple[float, ...], printed: str
) -> Finding:
    runs = _runs(study, gpu, gpu_count, rates)
    cells = labelled(runs, runs["throughput_requests_per_s"])
    noise = study.noise["throughput_requests_per_s"]
    cells["holds"] = near(cells["value"], printed, noise_frac=noise)
    rows = rows_printing(printed, "throughput_requests_per_s", study.table_2)
    note = f"rows of Table 2 that round to {printed}: {', '.join(map(str, rows)) or 'none'}"
    return Finding(cells, span(cells, "requests/s", 2), bounds=bounds(cells, noise), note=note)


def _row(study: Study, number: int, column: str) -> float:
    return float(study.table_2.set_index("row").loc[number, column])


def _arithmetic(recomputed: str) -> Finding:
    return Finding(pd.DataFrame(), recomputed, evidence="printed", note=NO_SCALE_OUT)
