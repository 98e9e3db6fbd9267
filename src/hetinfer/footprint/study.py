"""The study's own account of energy: its Table 3, and the same at other powers and equal rates."""

import numpy as np
import pandas as pd

from hetinfer import metrics
from hetinfer.footprint.grid import find_grid
from hetinfer.footprint.inputs import Array, interval, sample_range
from hetinfer.footprint.power import (
    POWER_ASSUMPTIONS,
    PowerAssumption,
    board_power,
    measured_power_w,
    power_grade,
)
from hetinfer.published import (
    PRINTED_POWER_W,
    TABLE_3_RUNS,
    compare_other,
    load_published_other,
)
from hetinfer.runs import CONFIGURATION, average_replicates
from hetinfer.values import agrees_as_printed

STUDY_REGION = "EU27"
MEASURED_RUN = "measured run"  # a run whose own energy was metered, beside POWER_ASSUMPTIONS


def table_3(table_2: pd.DataFrame) -> pd.DataFrame:
    """Table 3 cell by cell: printed, recomputed with its rounded steps carried on, and without.

    Columns: item, name, unit, printed, stepwise, stepwise_agrees, unrounded, unrounded_agrees.
    Powers are the printed ones; `table_2` is the frame of `published.table_2_runs`.
    """
    other = load_published_other()
    cells = compare_other(other[other["source"] == "paper-table-3"], table_2)
    exact = _unrounded(table_2)
    unrounded = [exact[item, name] for item, name in zip(cells["item"], cells["name"], strict=True)]
    return cells[["item", "name", "unit", "printed"]].assign(
        stepwise=cells["recomputed"],
        stepwise_agrees=cells["agrees"].astype(bool),
        unrounded=unrounded,
        unrounded_agrees=list(map(agrees_as_printed, unrounded, cells["printed"])),
    )


def table_3_runs(table_2: pd.DataFrame) -> pd.DataFrame:
    """The two runs that Table 3 is made of: the H100 at 16 requests per s, two 4090s at 4."""
    numbers = list(TABLE_3_RUNS.values())
    return table_2.set_index("row").loc[numbers].reset_index()


def mtoken_per_kwh_samples(
    runs: pd.DataFrame,
    assumption: PowerAssumption,
    *,
    n_samples: int,
    noise_frac: float,
    rng: np.random.Generator,
) -> Array:
    """Million tokens per kWh of the boards alone, shape (n_runs, n_samples): 3.6 X / P.

    Every run of one card shares its samples of board power, since the card's draw is unknown once,
    not run by run; `noise_frac` is the relative noise of one run's throughput X.
    """
    boards = {
        gpu: sample_range(board_power(gpu, assumption), n_samples, rng)
        for gpu in sorted(runs["gpu"].unique())
    }
    boards_w = np.array([boards[gpu] for gpu in runs["gpu"]])
    power_w = runs["gpu_count"].to_numpy(dtype=float)[:, np.newaxis] * boards_w
    noise = np.exp(noise_frac * rng.standard_normal((len(runs), n_samples)))
    rate = runs["throughput_tokens_per_s"].to_numpy(dtype=float)[:, np.newaxis] * noise
    return np.asarray(metrics.mtoken_per_kwh(power_w, rate))


def energy_table(
    runs: pd.DataFrame,
    *,
    ttft_target_s: float,
    n_samples: int,
    noise_frac: float,
    rng: np.random.Generator,
    assumptions: tuple[PowerAssumption, ...] = POWER_ASSUMPTIONS,
) -> pd.DataFrame:
    """Joules per token of the boards alone, one row a cell of runs and power assumption.

    Columns: configuration, rate_requests_per_s, meets_target, power (one of `assumptions`, or
    `measured run` for cells whose own energy was metered), grade, j_per_token, low, high.
    Replicates are averaged. Raises InputError for a card without a figure under an assumption.
    """
    cells = average_replicates(runs)
    keys = cells[[*CONFIGURATION, "rate_requests_per_s"]].assign(
        meets_target=cells["ttft_p99_s"] <= ttft_target_s
    )
    frames = []
    for assumption in assumptions:
        samples = mtoken_per_kwh_samples(
            cells, assumption, n_samples=n_samples, noise_frac=noise_frac, rng=rng
        )
        low, median, high = interval(_j_per_token(samples))
        grades = [power_grade(gpu, assumption) for gpu in cells["gpu"]]
        frames.append(
            keys.assign(power=assumption, grade=grades, j_per_token=median, low=low, high=high)
        )
    metered = measured_power_w(cells) / cells["throughput_tokens_per_s"]
    own = keys.assign(power=MEASURED_RUN, grade="A", j_per_token=metered, low=metered, high=metered)
    return pd.concat([*frames, own[metered.notna()]], ignore_index=True)


def _j_per_token(mtoken_per_kwh: Array) -> Array:
    return metrics.JOULES_PER_KWH / metrics.TOKENS_PER_MTOKEN / mtoken_per_kwh


def _unrounded(table_2: pd.DataFrame) -> dict[tuple[str, str], float]:
    grid_g_per_kwh = find_grid(STUDY_REGION).g_co2_per_kwh
    values = {("grid", "carbon intensity of electricity"): grid_g_per_kwh}
    for item, (_, run) in zip(TABLE_3_RUNS, table_3_runs(table_2).iterrows(), strict=True):
        rate = float(run["throughput_tokens_per_s"])
        power_w = PRINTED_POWER_W[item]
        per_hour = rate * metrics.SECONDS_PER_HOUR / metrics.TOKENS_PER_MTOKEN
        values |= {
            (item, "tokens per second"): rate,
            (item, "tokens per hour"): per_hour,
            (item, "energy per hour"): power_w / 1000,
            (item, "tokens per kWh"): float(np.asarray(metrics.mtoken_per_kwh(power_w, rate))),
            (item, "carbon intensity"): float(
                np.asarray(metrics.carbon_g_per_mtoken(power_w, rate, grid_g_per_kwh))
            ),
        }
    return values
