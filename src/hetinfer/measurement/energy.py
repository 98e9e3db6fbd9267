"""From power samples to the energy of a run, with a gate that refuses what cannot be trusted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hetinfer.measurement.power import PowerLog, Sample

MAX_GAP_S = 3.0  # a longer silence may hide a load peak
MAX_DISAGREEMENT_FRAC = 0.05  # NVML's power is good to about 5 %

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class DeviceEnergy:
    """One device over a window: energy by its counter and by its samples, in joules.

    `energy_j` is the counter's where there is one, else the integral's; None with a `reason` where
    neither can be had or the gate refuses them.
    """

    device: str
    energy_j: float | None = None
    counter_j: float | None = None
    integral_j: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class RunEnergy:
    """Energy of one run over all its GPUs, and over the CPU packages; None where not measured.

    `above_idle` takes off the idle power measured before the server started. `gpu_reason` and
    `cpu_reason` say why a number is missing, by code; '' when none is.
    """

    gpu_energy_j: float | None = None
    gpu_counter_j: float | None = None
    gpu_integral_j: float | None = None
    gpu_mean_power_w: float | None = None
    gpu_idle_power_w: float | None = None
    gpu_j_per_token: float | None = None
    gpu_above_idle_j_per_token: float | None = None
    cpu_energy_j: float | None = None
    cpu_j_per_token: float | None = None
    gpu_reason: str = ""
    cpu_reason: str = ""


def run_energy(
    log: PowerLog, start_s: float, end_s: float, *, tokens: int, idle_power_w: float | None
) -> RunEnergy:
    """Energy between two times, total, above idle, and per token: E / n and (E - P_idle t) / n.

    `tokens` are the run's input and output tokens together. All its GPUs must pass the gate.
    """
    gpus = [device_energy(log, gpu, start_s, end_s) for gpu in log.gpus]
    cpus = [device_energy(log, cpu, start_s, end_s) for cpu in log.cpus]
    gpu_j, cpu_j = _sum([g.energy_j for g in gpus]), _sum([c.energy_j for c in cpus])
    duration_s = end_s - start_s
    above_j = None if gpu_j is None or idle_power_w is None else gpu_j - idle_power_w * duration_s
    return RunEnergy(
        gpu_energy_j=gpu_j,
        gpu_counter_j=_sum([g.counter_j for g in gpus]),
        gpu_integral_j=_sum([g.integral_j for g in gpus]),
        gpu_mean_power_w=None if gpu_j is None else gpu_j / duration_s,
        gpu_idle_power_w=idle_power_w,
        gpu_j_per_token=_per(gpu_j, tokens),
        gpu_above_idle_j_per_token=_per(above_j, tokens),
        cpu_energy_j=cpu_j,
        cpu_j_per_token=_per(cpu_j, tokens),
        gpu_reason=log.reasons.get("gpu", "") or _first_reason(gpus),
        cpu_reason=log.reasons.get("cpu", "") or _first_reason(cpus),
    )


def device_energy(log: PowerLog, device: str, start_s: float, end_s: float) -> DeviceEnergy:
    """One device's energy between two times, or why there is none.

    The gate: the device was seen at all, no two of its samples (nor a sample and an end of the
    window) are more than 3 s apart, and counter and integral agree within 5 %.
    """
    samples = [sample for sample in log.samples if sample.device == device]
    if device in log.reasons:
        return DeviceEnergy(device, reason=log.reasons[device])
    if len(samples) < 2:
        return DeviceEnergy(device, reason="not-seen")
    if longest_gap_s([s.time_s for s in samples], start_s, end_s) > MAX_GAP_S:
        return DeviceEnergy(device, reason="gap")
    counter_j = counter_between_j(samples, start_s, end_s)
    integral_j = integral_between_j(samples, start_s, end_s)
    if counter_j is not None and integral_j is not None:
        larger_j = max(counter_j, integral_j)
        if abs(counter_j - integral_j) > MAX_DISAGREEMENT_FRAC * larger_j:
            return DeviceEnergy(device, None, counter_j, integral_j, "counter-integral-disagree")
    energy_j = integral_j if counter_j is None else counter_j
    missing = {"energy_j": counter_j, "power_w": integral_j if device.startswith("gpu") else 0.0}
    reasons = [f"no-{name}" for name, found in missing.items() if found is None]
    return DeviceEnergy(device, energy_j, counter_j, integral_j, ";".join(reasons))


def longest_gap_s(times_s: Sequence[float], start_s: float, end_s: float) -> float:
    """The longest time in the window without a sample, its two ends counted."""
    inside = [t for t in times_s if start_s < t < end_s]
    before = max((t for t in times_s if t <= start_s), default=math.nan)
    after = min((t for t in times_s if t >= end_s), default=math.nan)
    edges = [
        start_s if math.isnan(before) else before,
        *inside,
        end_s if math.isnan(after) else after,
    ]
    return float(np.diff(edges).max())


def counter_between_j(samples: Sequence[Sample], start_s: float, end_s: float) -> float | None:
    """The counter's rise over the window, linear between samples; None without a counter."""
    read = [(s.time_s, s.energy_j) for s in samples if s.energy_j is not None]
    if len(read) < 2:
        return None
    times_s, energies_j = _columns(read)
    first_j, last_j = np.interp([start_s, end_s], times_s, energies_j)
    return float(last_j - first_j)


def integral_between_j(samples: Sequence[Sample], start_s: float, end_s: float) -> float | None:
    """Power integrated over the window by the trapezoid rule; None without power readings."""
    read = [(s.time_s, s.power_w) for s in samples if s.power_w is not None]
    if len(read) < 2:
        return None
    times_s, powers_w = _columns(read)
    inside = (times_s > start_s) & (times_s < end_s)
    at_s = np.concatenate([[start_s], times_s[inside], [end_s]])
    return float(np.trapezoid(np.interp(at_s, times_s, powers_w), at_s))


def mean_power_w(log: PowerLog) -> float | None:
    """Mean power of all the log's GPUs together over the whole log, in watts: the idle baseline."""
    if not log.samples:
        return None
    start_s, end_s = log.samples[0].time_s, log.samples[-1].time_s
    energy_j = _sum([device_energy(log, gpu, start_s, end_s).energy_j for gpu in log.gpus])
    return None if energy_j is None or end_s <= start_s else energy_j / (end_s - start_s)


def _columns(pairs: Sequence[tuple[float, float]]) -> tuple[Numbers, Numbers]:
    table = np.array(sorted(pairs), dtype=np.float64)
    return table[:, 0], table[:, 1]


def _sum(parts_j: Sequence[float | None]) -> float | None:
    """The sum of the parts if there are any and none is missing."""
    known = [part for part in parts_j if part is not None]
    return sum(known) if known and len(known) == len(parts_j) else None


def _per(energy_j: float | None, tokens: int) -> float | None:
    return None if energy_j is None or tokens <= 0 else energy_j / tokens


def _first_reason(energies: Sequence[DeviceEnergy]) -> str:
    return next((f"{e.device}:{e.reason}" for e in energies if e.reason), "")
