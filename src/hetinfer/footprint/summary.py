"""One configuration's footprint at one rate and in one region: what the command line shows."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from hetinfer import metrics
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
from hetinfer.footprint.power import board_power, drawn_power, printed_board_power_w
from hetinfer.hardware import configuration_label, find_gpu, find_model, short_name
from hetinfer.runs import average_replicates
from hetinfer.values import number_text

SAMPLES = 10_000


@dataclass(frozen=True)
class Service:
    """A model served by `gpu_count` cards at one offered rate, on one region's electricity."""

    model: str
    gpu: str
    gpu_count: int
    rate_requests_per_s: float
    region: str


def find_cell(runs: pd.DataFrame, service: Service) -> "pd.Series[float]":
    """The run of that model, configuration and rate, replicates averaged.

    Raises InputError for a cell without a run; the line lists the configurations and rates there are.
    """
    model, gpu = find_model(service.model).model, find_gpu(service.gpu).gpu
    cells = average_replicates(runs)
    of_model = cells[cells["model"] == model]
    at = (of_model["gpu"] == gpu) & (of_model["gpu_count"] == service.gpu_count)
    found = of_model[at & (of_model["rate_requests_per_s"] == service.rate_requests_per_s)]
    if found.empty:
        known = of_model.drop_duplicates(["gpu", "gpu_count"])
        configurations = [f"{n}x{name}" for name, n in zip(known["gpu"], known["gpu_count"], strict=True)]
        rates = sorted(of_model["rate_requests_per_s"].unique())
        raise InputError(
            "no such run",
            got=f"{service.gpu_count}x{gpu} at {service.rate_requests_per_s:g} requests/s",
            expected=f"one of {', '.join(configurations)} at {', '.join(f'{r:g}' for r in rates)}",
            where=f"the runs of {short_name(model)}",
            do="name one of these",
        )
    return found.iloc[0]
