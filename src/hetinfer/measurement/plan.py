"""What a campaign would take, before anything runs: time, energy and rent of each cell, and fit."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise

import pandas as pd

from hetinfer.hardware import CPU, load_gpus
from hetinfer.measurement.campaign import Campaign, Cell, all_series, describe_model
from hetinfer.metrics import SECONDS_PER_HOUR
from hetinfer.runs import CONFIGURATION, load_recorded
from hetinfer.values import rounded

START_S = 120.0  # loading weights and compiling, once a series
CPU_START_S = 40.0
MEMORY_FRAC = 0.9  # what vLLM takes of a card unless told otherwise
SEQUENCE_TOKENS = 4096  # what must fit at least, where the flags do not say
BYTES = {"float16": 2.0, "bfloat16": 2.0, "float32": 4.0, "auto": 0.0}
BYTES_PER_GB = 1e9


@dataclass(frozen=True)
class CellPlan:
    """One cell's estimate. `energy_kwh` is at the cards' power limit, so an upper bound.

    `cost_usd` and `energy_kwh` are None on a CPU; `obstacle` says why the cell cannot run, or ''.
    `time_from` is `recorded` where the study ran this configuration; else it is `schedule`, and the
    time a lower bound.
    """

    cell: str
    duration_s: float
    time_from: str
    energy_kwh: float | None
    cost_usd: float | None
    obstacle: str


def plan_campaign(campaign: Campaign, prices: Mapping[str, float]) -> list[CellPlan]:
    """The estimate of every cell in order; a server's start is counted in its first cell.

    `prices` are USD per GPU-hour by GPU. A cell that cannot run takes no time.
    """
    throughputs = _recorded_throughputs()
    return [
        _cell_plan(campaign, cell, prices, throughputs)
        for series in all_series(campaign)
        for cell in series.cells
    ]


def obstacle(campaign: Campaign, cell: Cell) -> str:
    """Why a cell's model cannot be served on its GPUs; '' if it can, or on a CPU.

    Weights at the campaign's number format, split over the cards, and the KV cache of one sequence
    must fit into 90 % of their memory, and the attention heads must divide over the cards.
    """
    if cell.gpu == CPU:
        return ""
    model, gpu = describe_model(cell.model), load_gpus()[cell.gpu]
    if model.heads % cell.gpu_count:
        return f"{model.heads} attention heads do not divide over {cell.gpu_count} cards"
    weights_gb = model.parameters_b * (
        BYTES.get(campaign.dtype) or model.weight_bytes_per_parameter
    )
    cache_gb = model.kv_bytes_per_token * _sequence_tokens(campaign, cell) / BYTES_PER_GB
    room_gb = MEMORY_FRAC * gpu.memory_gb * cell.gpu_count
    if weights_gb + cache_gb <= room_gb:
        return ""
    return (
        f"weights {rounded(weights_gb, 1)} GB and one sequence's KV cache {rounded(cache_gb, 1)} GB"
        f" do not fit into {MEMORY_FRAC:.0%} of {cell.gpu_count} x {gpu.memory_gb:g} GB"
    )


def plan_frame(plans: list[CellPlan]) -> pd.DataFrame:
    """The estimates as a frame, one row a cell."""
    return pd.DataFrame([asdict(plan) for plan in plans])


def plan_text(campaign: Campaign, plans: list[CellPlan]) -> str:
    """The estimates as text: a line a cell, what differs from the study's protocol, the sums."""
    width = max(len(plan.cell) for plan in plans)
    lines = [f"{campaign.name}: {campaign.title}", _row("cell", width, "time", "kWh", "USD")]
    for plan in plans:
        time = duration_text(plan.duration_s)
        energy, cost = _known(plan.energy_kwh, 3), _known(plan.cost_usd, 2)
        row = _row(plan.cell, width, time, energy, cost)
        lines.append(f"{row}  {plan.obstacle and 'does not fit: '}{plan.obstacle}".rstrip())
    lines += [f"differs from the study: {difference}" for difference in campaign.differences]
    return "\n".join([*lines, _sums(plans)])


def duration_text(duration_s: float) -> str:
    """A duration as `1 h 05 min`, `3 min 20 s` or `45 s`."""
    minutes, seconds = divmod(round(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"


def _sums(plans: list[CellPlan]) -> str:
    able = [plan for plan in plans if not plan.obstacle]
    bound = "at least" if any(plan.time_from == "schedule" for plan in able) else "about"
    total = f"{len(able)} of {len(plans)} cells can run, {bound} "
    total += duration_text(sum(plan.duration_s for plan in able))
    energies = [plan.energy_kwh for plan in able if plan.energy_kwh is not None]
    costs = [plan.cost_usd for plan in able if plan.cost_usd is not None]
    if energies:
        total += f", at most {rounded(sum(energies), 1)} kWh"
    return total + (f", USD {rounded(sum(costs), 2)}" if costs else "")


def _cell_plan(
    campaign: Campaign,
    cell: Cell,
    prices: Mapping[str, float],
    throughputs: Mapping[tuple[str, str, int], float],
) -> CellPlan:
    reason = obstacle(campaign, cell)
    if reason:
        return CellPlan(cell.name, 0.0, "", None, None, reason)
    capacity = throughputs.get((cell.model, cell.gpu, cell.gpu_count))
    slowest = min(cell.rate_requests_per_s, capacity or cell.rate_requests_per_s)
    start_s = CPU_START_S if cell.gpu == CPU else START_S
    duration_s = cell.prompts / slowest + (start_s if cell.position == 0 else 0.0)
    time_from = "recorded" if capacity else "schedule"
    if cell.gpu == CPU:
        return CellPlan(cell.name, duration_s, time_from, None, None, "")
    gpu_hours = cell.gpu_count * duration_s / SECONDS_PER_HOUR
    energy_kwh = load_gpus()[cell.gpu].tdp_w * gpu_hours / 1000
    cost_usd = prices[cell.gpu] * gpu_hours if cell.gpu in prices else None
    return CellPlan(cell.name, duration_s, time_from, energy_kwh, cost_usd, "")


def _recorded_throughputs() -> dict[tuple[str, str, int], float]:
    """The highest request throughput that the study recorded of each configuration."""
    runs = load_recorded()
    best: dict[tuple[str, str, int], float] = {}
    columns = [*CONFIGURATION, "throughput_requests_per_s"]
    for model, gpu, count, throughput in runs[columns].itertuples(index=False):
        key = (str(model), str(gpu), int(count))
        best[key] = max(best.get(key, 0.0), float(throughput))
    return best


def _sequence_tokens(campaign: Campaign, cell: Cell) -> int:
    flags = (*campaign.server_flags, *cell.variant.server_flags)
    named = dict(pairwise(flags)).get("--max-model-len")
    return int(named) if named and named.isdigit() else SEQUENCE_TOKENS


def _row(cell: str, width: int, time: str, energy: str, cost: str) -> str:
    return f"{cell:<{width}}  {time:>12}  {energy:>8}  {cost:>8}"


def _known(value: float | None, decimals: int) -> str:
    return "-" if value is None else rounded(value, decimals)
