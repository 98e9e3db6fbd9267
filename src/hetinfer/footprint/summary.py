"""One configuration's footprint at one rate and in one region: what the command line shows."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from hetinfer.errors import InputError
from hetinfer.footprint.carbon import (
    HOLDINGS,
    embodied_g_per_mtoken,
    known_machine,
    kwh_per_mtoken,
    sample_machine,
    sample_utilisation,
)
from hetinfer.footprint.grid import find_grid
from hetinfer.footprint.inputs import Array, interval
from hetinfer.footprint.power import (
    POWER_ASSUMPTIONS,
    board_power,
    measured_power_w,
    power_grade,
    printed_board_power_w,
)
from hetinfer.footprint.study import MEASURED_RUN
from hetinfer.hardware import configuration_label, find_gpu, find_model, short_name
from hetinfer.metrics import JOULES_PER_KWH, TOKENS_PER_MTOKEN
from hetinfer.runs import average_replicates
from hetinfer.values import interval_text, number_text

N_SAMPLES = 10_000
J_PER_TOKEN_OF_KWH_PER_MTOKEN = JOULES_PER_KWH / TOKENS_PER_MTOKEN


@dataclass(frozen=True)
class Service:
    """A model served by `gpu_count` cards at one offered rate, on one region's electricity."""

    model: str
    gpu: str
    gpu_count: int
    rate_requests_per_s: float
    region: str


def find_cell(runs: pd.DataFrame, service: Service) -> "pd.Series[float]":
    """The runs of that model, configuration and rate, replicates averaged.

    Raises InputError for a cell that no run measured; the line lists what there is of the model.
    """
    model, gpu = find_model(service.model).model, find_gpu(service.gpu).gpu
    cells = average_replicates(runs[runs["model"] == model])
    same = (cells["gpu"] == gpu) & (cells["gpu_count"] == service.gpu_count)
    found = cells[same & (cells["rate_requests_per_s"] == service.rate_requests_per_s)]
    if found.empty:
        cards = cells.drop_duplicates(["gpu", "gpu_count"])
        known = [f"{n}x {name}" for name, n in zip(cards["gpu"], cards["gpu_count"], strict=True)]
        rates = [f"{rate:g}" for rate in sorted(cells["rate_requests_per_s"].unique())]
        raise InputError(
            "no such run",
            got=f"{service.gpu_count}x {gpu} at {service.rate_requests_per_s:g} requests/s",
            expected=f"one of {', '.join(known)} at {', '.join(rates)} requests/s",
            where=f"the runs of {short_name(model)}",
            do="name one of these, or measure it",
        )
    return found.iloc[0]


def summarise(runs: pd.DataFrame, service: Service, rng: np.random.Generator) -> pd.DataFrame:
    """Energy and carbon of a service, one row a number: quantity, value, low, high, unit, note.

    Energy of the boards alone under each power assumption that the card has a figure for, then of
    the whole machine (waiting hours, host, site) by its measured draws; operational carbon on the
    region's grid; embodied and total carbon by how the hardware is held.
    """
    cell, grid = find_cell(runs, service), find_grid(service.region)
    gpu, cards = str(cell["gpu"]), float(cell["gpu_count"])
    rate = float(cell["throughput_tokens_per_s"])
    machine = sample_machine(known_machine(gpu), sample_utilisation(N_SAMPLES, rng), rng)
    kwh = kwh_per_mtoken(machine, cards, rate)
    run_g = kwh * grid.g_co2_per_kwh
    source = f"{cell['evidence']}, n = {cell['replicate']:g}"
    rows = [
        ("throughput", np.array([rate]), "token/s", source),
        *_boards(cell),
        ("energy, machine", J_PER_TOKEN_OF_KWH_PER_MTOKEN * kwh, "J/token", "reference"),
        ("operational carbon", run_g, "g/Mtoken", f"reference, {grid.region} {grid.year}"),
    ]
    for holding in HOLDINGS:
        made_g = embodied_g_per_mtoken(machine, cards, rate, holding=holding)
        rows.append((f"embodied carbon, {holding}", made_g, "g/Mtoken", "reference"))
        rows.append((f"total carbon, {holding}", made_g + run_g, "g/Mtoken", "reference"))
    bounds = np.array([interval(samples) for _, samples, _, _ in rows])
    table = pd.DataFrame([(name, unit, note) for name, _, unit, note in rows])
    table.columns = ["quantity", "unit", "note"]
    return table.assign(value=bounds[:, 1], low=bounds[:, 0], high=bounds[:, 2])


def summary_text(table: pd.DataFrame, service: Service) -> str:
    """The summary as lines, each number rounded by its interval, with its evidence."""
    label = configuration_label(find_gpu(service.gpu).gpu, service.gpu_count)
    grid = find_grid(service.region)
    model = short_name(find_model(service.model).model)
    lines = [
        f"{model} on {label} at {service.rate_requests_per_s:g} requests/s, "
        f"{grid.region} ({number_text(grid.g_co2_per_kwh, decimals=1)} g CO2e/kWh)"
    ]
    for row in table.itertuples(index=False):
        if row.low < row.high:
            text = number_text(row.value, low=row.low, high=row.high)
            text += f" ({interval_text(row.low, row.high)})"
        else:
            text = number_text(row.value, decimals=3 if row.unit == "J/token" else 1)
        lines.append(f"  {row.quantity:<32}{text} {row.unit} [{row.note}]")
    return "\n".join(lines)


def _boards(cell: "pd.Series[float]") -> list[tuple[str, Array, str, str]]:
    gpu = str(cell["gpu"])
    per_token = float(cell["gpu_count"]) / float(cell["throughput_tokens_per_s"])
    rows = []
    for assumption in POWER_ASSUMPTIONS:
        if assumption == "as printed" and gpu not in printed_board_power_w():
            continue
        known = board_power(gpu, assumption)
        ends = np.linspace(known.low, known.high, N_SAMPLES) * per_token
        grade = power_grade(gpu, assumption)
        note = grade if assumption == "as printed" else f"reference, grade {grade}"
        rows.append((f"energy, boards, {assumption}", ends, "J/token", note))
    own_w = float(measured_power_w(cell.to_frame().T).iloc[0])
    if np.isfinite(own_w):
        own = np.array([own_w / float(cell["throughput_tokens_per_s"])])
        rows.append((f"energy, boards, {MEASURED_RUN}", own, "J/token", "measured"))
    return rows
