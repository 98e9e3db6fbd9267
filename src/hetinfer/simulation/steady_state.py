"""Tables of chapter 07: what the study's configurations do in steady state, cold and warm.

Several consumer cards are simulated with a host that keeps up: what their GPUs could do. The host
of their runs would miss a TTFT target at low load first, which no capacity describes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from hetinfer import metrics
from hetinfer.runs import CONFIGURATION
from hetinfer.simulation.calibration import Fit
from hetinfer.simulation.capacity import (
    Load,
    capacity_requests_per_s,
    draw_requests,
    healthy_host,
    latency_curve,
    simulate_load,
)
from hetinfer.simulation.engine import simulate_engine
from hetinfer.simulation.fitted import Calibration
from hetinfer.simulation.sweep import sweep
from hetinfer.workload import Floats, Lengths

CURVE = [*CONFIGURATION, "cache", "reconstruction", "seed"]
STUDY_RATE = 16.0  # requests per second: the highest rate with warm runs
CLAIM_MODEL = "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B"
CLAIM_CARDS = (("h100-pcie", 1), ("rtx-4090", 2))
CLAIM_NODES = 4  # of two 4090s, which the paper holds against one H100
CLAIM_UNITS = {"S06": "ms", "S15": "x", "S16": "USD/Mtoken"} | dict.fromkeys(
    ("S14", "S17", "S18"), "request/s"
)


@dataclass(frozen=True)
class Scenario:
    """One configuration under one kind of load; `cache` is cold or warm."""

    fit: Fit
    load: Load
    reconstruction: int

    @property
    def cache(self) -> str:
        """What the engine finds in its prefix cache: nothing (cold), or every text (warm)."""
        return "warm" if self.load.repeated else "cold"


def healthy_fits(calibration: Calibration, configurations: pd.DataFrame) -> list[Fit]:
    """The fits of the configurations named by the frame, several 4090s with a healthy host."""
    named = set(map(tuple, configurations[CONFIGURATION].drop_duplicates().to_numpy()))
    chosen = [f for f in calibration.fits if (f.model, f.gpu, f.gpu_count) in named]
    return [
        replace(fit, engine=healthy_host(fit.engine)) if _has_busy_host(fit) else fit
        for fit in chosen
    ]


def scenarios(
    calibrations: Sequence[Calibration],
    configurations: pd.DataFrame,
    *,
    requests: int,
    seeds: Sequence[int],
) -> list[Scenario]:
    """Every configuration, cold and warm, with every reconstruction and seed."""
    return [
        Scenario(fit, Load(own.lengths[fit.model], requests, repeated, seed), own.reconstruction)
        for own in calibrations
        for fit in healthy_fits(own, configurations)
        for repeated in (False, True)
        for seed in seeds
    ]


def latency_curves(
    cells: Sequence[Scenario], *, jobs: int = -1, backend: str = "loky"
) -> pd.DataFrame:
    """Each scenario's latency curve, one row a rate, with the columns `CURVE`; on all cores.

    `backend` as in `sweep`: `ray` spreads the scenarios over a cluster.
    """
    return pd.concat(sweep(_curve, cells, jobs=jobs, backend=backend), ignore_index=True)


def capacity_table(curves: pd.DataFrame, targets_s: Sequence[float]) -> pd.DataFrame:
    """Capacity by configuration, cache and target of P99 TTFT, requests and tokens per second.

    `capacity_requests_per_s` is the median over reconstructions and seeds, `low` and `high` their
    range; `capacity_tokens_per_s` counts input and output, at the mean tokens of a request.
    """
    rows = []
    for keys, curve in curves.groupby(CURVE, sort=False):
        per_request = curve["throughput_tokens_per_s"] / curve["throughput_requests_per_s"]
        for target_s in targets_s:
            rate = capacity_requests_per_s(curve, ttft_p99_s=target_s)
            rows.append((*keys, target_s, rate, rate * per_request.mean()))
    found = pd.DataFrame(rows, columns=[*CURVE, "ttft_p99_target_s", "rate", "tokens"])
    groups = found.groupby([*CONFIGURATION, "cache", "ttft_p99_target_s"], sort=False)
    return groups.agg(
        capacity_requests_per_s=("rate", "median"),
        low=("rate", "min"),
        high=("rate", "max"),
        capacity_tokens_per_s=("tokens", "median"),
    ).reset_index()


def drain_table(
    calibration: Calibration, configurations: pd.DataFrame, counts: Sequence[int], seed: int
) -> pd.DataFrame:
    """Achieved rate N/T of runs of N new prompts at 16 per second: how much of it is the drain."""
    rows = []
    for fit in healthy_fits(calibration, configurations):
        for count in counts:
            load = Load(calibration.lengths[fit.model], count, seed=seed)
            requests = draw_requests(load, STUDY_RATE)
            finished_s = simulate_engine(requests, fit.engine).finished_s
            achieved = metrics.throughput_requests_per_s(count, float(finished_s.max()))
            rows.append((fit.model, fit.gpu, fit.gpu_count, count, achieved))
    columns = [*CONFIGURATION, "prompts", "throughput_requests_per_s"]
    return pd.DataFrame(rows, columns=columns)


def cost_table(
    capacities: pd.DataFrame, recorded: pd.DataFrame, prices: dict[str, float], target_s: float
) -> pd.DataFrame:
    """Share and cost in steady state, cold, at one target, beside the study's at 16 per second.

    Share is tokens per second over one H100's of the same model; cost is USD per million tokens.
    A configuration without capacity at the target has no cost (infinite).
    """
    cold = capacities[
        (capacities["cache"] == "cold") & (capacities["ttft_p99_target_s"] == target_s)
    ].rename(columns={"capacity_tokens_per_s": "throughput_tokens_per_s"})
    study = recorded[recorded["rate_requests_per_s"] == STUDY_RATE]
    columns = [*CONFIGURATION, "throughput_tokens_per_s"]
    both = cold[columns].merge(study[columns], on=CONFIGURATION, suffixes=("", "_study"))
    result = both[CONFIGURATION].copy()
    for name, suffix in (("steady", ""), ("study", "_study")):
        tokens = both[f"throughput_tokens_per_s{suffix}"]
        own = both.assign(throughput_tokens_per_s=tokens)
        result[f"throughput_tokens_per_s_{name}"] = tokens
        result[f"share_{name}"] = tokens / _baseline(own)
        price = metrics.price_of(both, prices)
        with np.errstate(divide="ignore"):
            result[f"cost_usd_per_mtoken_{name}"] = metrics.cost_usd_per_mtoken(
                tokens, both["gpu_count"], price
            )
    return result


def sensitivity_table(
    calibration: Calibration, configurations: pd.DataFrame, target_s: float, requests: int
) -> pd.DataFrame:
    """Cold capacity at one target when one assumption changes, as a ratio to the unchanged one.

    Varied: the model's own lengths against those of the longest answers; prompts and answers a
    fifth longer; half the KV cache; 256 sequences at most on large cards.
    """
    rows = []
    for fit in healthy_fits(calibration, configurations):
        lengths = calibration.lengths[fit.model]
        variants = {
            "as fitted": (fit, lengths),
            "prompts 20 % longer": (fit, _stretched(lengths, 1.2, 1.0)),
            "answers 20 % longer": (fit, _stretched(lengths, 1.0, 1.2)),
            "half the KV cache": (_with_cache(fit, 0.5), lengths),
            "at most 256 sequences": (_with_sequences(fit, 256), lengths),
        }
        found = {}
        for name, (variant, own) in variants.items():
            curve = latency_curve(variant.engine, Load(own, requests))
            found[name] = capacity_requests_per_s(curve, ttft_p99_s=target_s)
        for name, rate in found.items():
            ratio = rate / found["as fitted"] if found["as fitted"] > 0 else np.nan
            rows.append((fit.model, fit.gpu, fit.gpu_count, name, rate, ratio))
    columns = [*CONFIGURATION, "assumption", "capacity_requests_per_s", "ratio"]
    return pd.DataFrame(rows, columns=columns)


def claim_table(
    calibration: Calibration, requests: int, seed: int, prices: dict[str, float]
) -> pd.DataFrame:
    """The simulated side of claims S06 and S14 to S18, cold and warm: `CLAIM_MODEL` alone.

    S06 P99 TTFT of the H100 at 16 requests/s, in ms; S14 four nodes of two 4090s at 4 each,
    requests/s; S15 that over the H100 at 16; S16 their cost, USD per million tokens; S17 what the
    H100 achieves at 16; S18 the highest rate that it follows, requests/s.
    """
    rows = pd.DataFrame([(CLAIM_MODEL, *card) for card in CLAIM_CARDS], columns=CONFIGURATION)
    engines = {fit.gpu: fit.engine for fit in healthy_fits(calibration, rows)}
    sides: dict[str, dict[str, float]] = {}
    for repeated, cache in ((False, "cold"), (True, "warm")):
        load = Load(calibration.lengths[CLAIM_MODEL], requests, repeated, seed)
        h100 = simulate_load(engines["h100-pcie"], load, STUDY_RATE)
        node = simulate_load(engines["rtx-4090"], load, STUDY_RATE / CLAIM_NODES)
        curve = latency_curve(engines["h100-pcie"], load)
        nodes_rate = CLAIM_NODES * node.throughput_requests_per_s
        price = prices["rtx-4090"]
        sides[cache] = {
            "S06": 1000 * h100.ttft_p99_s,
            "S14": nodes_rate,
            "S15": nodes_rate / h100.throughput_requests_per_s,
            "S16": float(metrics.cost_usd_per_mtoken(node.throughput_tokens_per_s, 2, price)),
            "S17": h100.throughput_requests_per_s,
            "S18": float(curve.loc[~curve["overloaded"], "rate_requests_per_s"].max()),
        }
    table = pd.DataFrame(sides).rename_axis("id").reset_index()
    return table.assign(unit=table["id"].map(CLAIM_UNITS), evidence="simulated")


def _curve(cell: Scenario) -> pd.DataFrame:
    fit = cell.fit
    return latency_curve(fit.engine, cell.load).assign(
        model=fit.model,
        gpu=fit.gpu,
        gpu_count=fit.gpu_count,
        cache=cell.cache,
        reconstruction=cell.reconstruction,
        seed=cell.load.seed,
    )


def _baseline(table: pd.DataFrame) -> Floats:
    one = table[(table["gpu"] == "h100-pcie") & (table["gpu_count"] == 1)]
    known = one.set_index("model")["throughput_tokens_per_s"]
    baseline: Floats = table["model"].map(known).to_numpy(float)
    return baseline


def _has_busy_host(fit: Fit) -> bool:
    return fit.engine.front_end.stall_frac > 0


def _stretched(lengths: Lengths, prompts: float, answers: float) -> Lengths:
    return Lengths(
        np.round(lengths.prompt_tokens * prompts).astype(np.int64),
        np.round(lengths.output_tokens * answers).astype(np.int64),
    )


def _with_cache(fit: Fit, factor: float) -> Fit:
    return replace(fit, engine=replace(fit.engine, kv_tokens=round(fit.engine.kv_tokens * factor)))


def _with_sequences(fit: Fit, most: int) -> Fit:
    limited = replace(fit.engine, max_sequences=min(most, fit.engine.max_sequences))
    return replace(fit, engine=limited)
