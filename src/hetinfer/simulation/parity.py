"""Simulated runs beside recorded ones: every statistic's error, and where it is largest."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from hetinfer.errors import InputError
from hetinfer.hardware import find_model
from hetinfer.runs import CONFIGURATION
from hetinfer.simulation.calibration import FITTED_RATES, STEP_TIME, Fit, select_runs
from hetinfer.simulation.replay import (
    STUDY_RATES,
    recorded_statistics,
    replay_statistics,
    statistics_frame,
    study_replay,
)
from hetinfer.workload import Lengths

SMALL_MODEL_B = 15  # 10^9 parameters: what "up to 14B" means, whose largest is 14.8
SHOWN = ("throughput_requests_per_s", "tpot_p50_s", "ttft_p50_s", "ttft_p99_s")  # in error tables


def parity_table(
    fits: Sequence[Fit], runs: pd.DataFrame, lengths: Mapping[str, Lengths]
) -> pd.DataFrame:
    """Simulated beside recorded: one row a configuration, rate and statistic, with its error.

    `error_frac` is simulated / recorded - 1, `set` says whether the rate was fitted. `lengths` are
    each model's. All of the study's rates are simulated, in its order.
    """
    tables = []
    for fit in fits:
        simulated = replay_statistics(
            fit.engine, study_replay(lengths[fit.model]), inter_token=True
        )
        own = select_runs(runs, fit.model, fit.gpu, fit.gpu_count)
        recorded = recorded_statistics(own, STUDY_RATES)
        pair = [statistics_frame(s, STUDY_RATES) for s in (simulated, recorded)]
        long = [t.melt("rate_requests_per_s", var_name="statistic") for t in pair]
        table = long[0].assign(recorded=long[1]["value"]).rename(columns={"value": "simulated"})
        tables.append(table.assign(model=fit.model, gpu=fit.gpu, gpu_count=fit.gpu_count))
    table = pd.concat(tables, ignore_index=True)
    fitted = table["rate_requests_per_s"].isin(FITTED_RATES)
    return table.assign(
        error_frac=table["simulated"] / table["recorded"] - 1,
        set=np.where(fitted, "fitted", "validation"),
    )


def error_table(parity: pd.DataFrame) -> pd.DataFrame:
    """Absolute relative errors by group, set and statistic: median and 90th percentile, count.

    Groups: one H100 with up to 14B parameters, all but several 4090s, several 4090s.
    """
    rows = []
    for group, members in _groups(parity).items():
        for (which, name), cells in parity[members].groupby(["set", "statistic"]):
            if name in SHOWN:
                errors = cells["error_frac"].abs()
                rows.append((group, which, name, errors.median(), errors.quantile(0.9), len(cells)))
    columns = ["group", "set", "statistic", "median_frac", "p90_frac", "n"]
    table = pd.DataFrame(rows, columns=columns)
    order = table["statistic"].map({name: place for place, name in enumerate(SHOWN)})
    return table.assign(order=order).sort_values(["group", "set", "order"]).drop(columns="order")


def statistic_errors(parity: pd.DataFrame) -> pd.DataFrame:
    """Absolute relative errors by statistic over all cells: median, 90th percentile, count."""
    cells = parity[parity["statistic"].isin(SHOWN)]
    errors = cells.assign(error=cells["error_frac"].abs()).groupby("statistic", sort=False)["error"]
    columns = {"median_frac": errors.median(), "p90_frac": errors.quantile(0.9), "n": errors.size()}
    return pd.DataFrame(columns).reset_index()


def worst_cells(parity: pd.DataFrame, count: int) -> pd.DataFrame:
    """The cells of validation rates with the largest errors in |log(simulated / recorded)|."""
    cells = parity[(parity["set"] == "validation") & parity["statistic"].isin(SHOWN)]
    off = np.abs(np.log1p(cells["error_frac"]))
    columns = [*CONFIGURATION, "rate_requests_per_s", "statistic", "recorded", "simulated"]
    return cells.assign(off=off).nlargest(count, "off")[[*columns, "error_frac"]]


def cell_value(parity: pd.DataFrame, cell: tuple[str, str, int, float], statistic: str) -> float:
    """One simulated statistic of a cell (model, GPU, count, rate); InputError if there is none."""
    keys = [*CONFIGURATION, "rate_requests_per_s", "statistic"]
    found = parity.set_index(keys)["simulated"]
    if (*cell, statistic) not in found.index:
        raise InputError(
            "no such cell", got=(*cell, statistic), expected="a cell of the table",
            where="cell_value", do="name one that was simulated",
        )  # fmt: skip
    return float(found[(*cell, statistic)])


def engine_table(fits: Sequence[Fit]) -> pd.DataFrame:
    """The fitted parameters, one row a configuration: ms a step, us a token, and the KV cache."""
    rows = []
    for fit in fits:
        step, front = fit.engine.step_time, fit.engine.front_end
        row = {"model": fit.model, "gpu": fit.gpu, "gpu_count": fit.gpu_count, "cost": fit.cost}
        row |= {f"{name[:-2]}_ms": 1e3 * getattr(step, name) for name in STEP_TIME[:2]}
        row |= {f"{name[:-2]}_us": 1e6 * getattr(step, name) for name in STEP_TIME[2:]}
        row |= {"receive_ms": 1e3 * front.receive_s, "token_us": 1e6 * front.token_s}
        rows.append(row | {"kv_tokens": fit.engine.kv_tokens})
    return pd.DataFrame(rows)


def without_prefix_cache(fits: Sequence[Fit]) -> list[Fit]:
    """The same engines with prefix caching switched off; nothing is fitted anew."""
    return [replace(f, engine=replace(f.engine, prefix_caching=False)) for f in fits]


def small_models(fits: Sequence[Fit]) -> list[Fit]:
    """Fits of models up to 14B parameters."""
    return [fit for fit in fits if find_model(fit.model).parameters_b < SMALL_MODEL_B]


def _groups(parity: pd.DataFrame) -> dict[str, pd.Series]:
    several_4090 = (parity["gpu"] == "rtx-4090") & (parity["gpu_count"] > 1)
    small = parity["model"].map(lambda name: find_model(name).parameters_b) < SMALL_MODEL_B
    one_h100 = (parity["gpu"] == "h100-pcie") & (parity["gpu_count"] == 1)
    return {
        "H100 x1, up to 14B": one_h100 & small,
        "all but several 4090s": ~several_4090,
        "several 4090s": several_4090,
    }
