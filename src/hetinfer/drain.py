"""The drain of a run: how long it lasts after its last request arrived.

A run of N requests at offered rate q lasts T = W + D: the window W = t_N in which the requests
arrive, the same for every configuration, and the drain D, in which the server finishes. W is known
before the run, so that only D needs a model. (The study's client sleeps one gap more after its last
request, 1.5/q s, so that no run ends before `workload.arrival_window_s`; D counts from the arrival,
which is what the server sees, and is interpolated and predicted better so.)
"""

import numpy as np
import pandas as pd

from hetinfer.errors import InputError
from hetinfer.runs import CONFIGURATION
from hetinfer.workload import study_arrivals_s


def with_drains(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs with `last_arrival_s`, when the last request arrived, and `drain_s`, the rest.

    Arrivals are the study's (`workload.study_arrivals_s`). InputError for a run that ends before
    its last arrival: it had other arrivals.
    """
    pairs = zip(runs["prompts"], runs["rate_requests_per_s"], strict=True)
    last_arrival_s = np.array([study_arrivals_s(int(n), float(q))[-1] for n, q in pairs])
    drain_s = runs["duration_s"].to_numpy() - last_arrival_s
    if (drain_s <= 0).any():
        row = runs.iloc[int(np.argmin(drain_s))]
        raise InputError(
            "no drain",
            got=f"{row['duration_s']:g} s",
            expected=f"more than the {last_arrival_s[int(np.argmin(drain_s))]:g} s of arrivals",
            where=f"{row['model']} at {row['rate_requests_per_s']:g}/s",
            do="leave out runs whose requests did not arrive as the study's",
        )
    return runs.assign(last_arrival_s=last_arrival_s, drain_s=drain_s)


def interpolate_drain_s(cells: pd.DataFrame, rate_requests_per_s: float) -> float:
    """Drain in seconds of one configuration at an offered rate between measured ones.

    ln D is linear in log2 q between the two neighbouring rates; `cells` has one row a rate. At a
    measured rate it is the measured drain. InputError outside the measured rates: what lies beyond
    them is no interpolation.
    """
    check_rate(cells, rate_requests_per_s)
    known = cells.sort_values("rate_requests_per_s")
    rates = known["rate_requests_per_s"].to_numpy(dtype=float)
    log_drain = np.interp(np.log2(rate_requests_per_s), np.log2(rates), np.log(known["drain_s"]))
    return float(np.exp(log_drain))


def interpolation_errors(cells: pd.DataFrame) -> pd.DataFrame:
    """Each inner cell predicted from its configuration's other rates, drain and duration compared.

    One row a configuration and inner rate; error_frac = predicted duration / measured - 1, and
    drain_error_frac the same for the drain alone.
    """
    rows = []
    for key, group in cells.groupby(CONFIGURATION, sort=False):
        inner = group.sort_values("rate_requests_per_s").iloc[1:-1]
        for index, cell in inner.iterrows():
            rate = float(cell["rate_requests_per_s"])
            drain_s = interpolate_drain_s(group.drop(index=index), rate)
            rows.append((*key, rate, cell["last_arrival_s"], cell["drain_s"], drain_s))
    names = [
        *CONFIGURATION,
        "rate_requests_per_s",
        "last_arrival_s",
        "drain_s",
        "predicted_drain_s",
    ]
    table = pd.DataFrame(rows, columns=names)
    missed_s = table["predicted_drain_s"] - table["drain_s"]
    return table.assign(
        error_frac=missed_s / (table["last_arrival_s"] + table["drain_s"]),
        drain_error_frac=missed_s / table["drain_s"],
    )


def check_rate(cells: pd.DataFrame, rate_requests_per_s: float) -> None:
    """InputError unless the rate lies within those of the cells: beyond them nothing was seen."""
    lowest, highest = cells["rate_requests_per_s"].min(), cells["rate_requests_per_s"].max()
    if not lowest <= rate_requests_per_s <= highest:
        raise InputError(
            "rate outside the measured ones",
            got=f"{rate_requests_per_s:g} requests/s",
            expected=f"{lowest:g} to {highest:g} requests/s",
            where="the runs",
            do="name a rate in that range",
        )


def check_count(cells: pd.DataFrame, gpu_count: int) -> None:
    """InputError unless some cell has at least as many cards, and the count is 1 or more."""
    most = cells["gpu_count"].max()
    if not 1 <= gpu_count <= most:
        raise InputError(
            "GPU count outside the measured ones",
            got=gpu_count,
            expected=f"1 to {most}",
            where="the runs",
            do="name a count in that range",
        )
