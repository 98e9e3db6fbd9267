"""What the command line says of a simulated engine, in a few lines of text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from hetinfer.hardware import configuration_label, find_gpu, find_model, short_name
from hetinfer.simulation.capacity import (
    Load,
    capacity_requests_per_s,
    healthy_host,
    latency_curve,
    simulate_load,
)
from hetinfer.simulation.engine import Engine
from hetinfer.simulation.fitted import load_calibrations, serving_engine, serving_lengths
from hetinfer.values import rounded
from hetinfer.workload import Lengths

MS_PER_S = 1000.0


@dataclass(frozen=True)
class Served:
    """A configuration as the simulator knows it: engine, lengths, and what they rest on."""

    title: str
    engine: Engine
    lengths: Lengths


def find_served(model: str, gpu: str, gpu_count: int) -> Served:
    """The configuration that the names mean, with the best calibration's engine and lengths.

    InputError for an unknown model or GPU, or a model that does not fit.
    """
    known, card = find_model(model), find_gpu(gpu)
    best = load_calibrations()[0]
    engine, fitted = serving_engine(best, known, card, gpu_count)
    basis = "fitted to its recorded runs" if fitted else "predicted from the card's constants"
    title = f"{short_name(known.model)} on {configuration_label(card.gpu, gpu_count)}, {basis}"
    return Served(title, engine, serving_lengths(best, known))


def simulate_text(served: Served, load: Load, rate_requests_per_s: float) -> str:
    """One engine at one rate: throughput, latencies, cache, and whether it keeps up."""
    point = simulate_load(served.engine, load, rate_requests_per_s)
    lines = [
        served.title,
        f"offered {rate_requests_per_s:g} requests/s, {load.requests:,} sent, evidence simulated",
        f"throughput  {rounded(point.throughput_requests_per_s, 2)} requests/s, "
        f"{rounded(point.throughput_tokens_per_s, 0)} tokens/s",
        f"TTFT        P50 {_ms(point.ttft_p50_s)} ms, P99 {_ms(point.ttft_p99_s)} ms",
        f"TPOT        P50 {_ms(point.tpot_p50_s)} ms, P99 {_ms(point.tpot_p99_s)} ms",
        f"cached      {rounded(100 * point.cached_frac, 0)} % of prompt tokens, "
        f"{point.preemptions:,} preemptions",
    ]
    if point.overloaded:
        lines.append("overloaded: the queue grows; latencies grow with the length of the run")
    return "\n".join(lines)


def capacity_text(
    served: Served, load: Load, targets_s: tuple[float, float], seeds: Sequence[int]
) -> str:
    """Highest rate within the targets of P99 TTFT and TPOT, cold and warm, with its range.

    Of what the GPUs can do: a host that keeps up takes the place of one that falls behind.
    """
    served = with_healthy_host(served)
    ttft_p99_s, tpot_p99_s = targets_s
    target = f"P99 TTFT <= {_ms(ttft_p99_s)} ms"
    if math.isfinite(tpot_p99_s):
        target += f", P99 TPOT <= {_ms(tpot_p99_s)} ms"
    lines = [served.title, f"{target}, {load.requests:,} requests a rate, evidence simulated"]
    for repeated, name in ((False, "cold (new prompts)"), (True, "warm (repeated prompts)")):
        found = []
        for seed in seeds:
            curve = latency_curve(served.engine, replace(load, repeated=repeated, seed=seed))
            kept = capacity_requests_per_s(curve, ttft_p99_s=ttft_p99_s, tpot_p99_s=tpot_p99_s)
            found.append(kept)
        over = f"{rounded(min(found), 2)} to {rounded(max(found), 2)} over {len(seeds)} seeds"
        lines.append(f"{name:<24} {rounded(median(found), 2)} requests/s ({over})")
    return "\n".join(lines)


def with_healthy_host(served: Served) -> Served:
    """The same GPUs with a host that keeps up, and a title that says so, where theirs does not."""
    if served.engine.front_end.stall_frac == 0:
        return served
    title = f"{served.title}; with a host that keeps up, as theirs did not"
    return replace(served, title=title, engine=healthy_host(served.engine))


def _ms(value_s: float) -> str:
    return rounded(MS_PER_S * value_s, 1) if math.isfinite(value_s) else "-"
