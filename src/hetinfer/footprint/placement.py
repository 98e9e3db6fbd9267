"""Where and when to run work that can wait: the cleanest placement, and what it costs.

A linear programme over y[j, p, t], the hours that the copies of pool p give job j in hour t: the
carbon (or cost) of all y is least, every job's tokens are made between its release and its
deadline, and no pool gives more hours than it has copies. A pool whose latency misses a job's
target, or that no run speaks of, never serves it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
from scipy.optimize import OptimizeResult, linprog
from scipy.sparse import csr_array, vstack

from hetinfer.errors import InputError
from hetinfer.footprint.carbon import Holding, Machine, embodied_g_per_mtoken, kwh_per_mtoken
from hetinfer.footprint.grid import constant_profile
from hetinfer.footprint.inputs import Array
from hetinfer.hardware import configuration_label
from hetinfer.metrics import SECONDS_PER_HOUR, TOKENS_PER_MTOKEN
from hetinfer.runs import CONFIGURATION

Objective = Literal["carbon", "cost"]
MTOKEN_PER_H = SECONDS_PER_HOUR / TOKENS_PER_MTOKEN  # of one token per s
TIE_SLACK_FRAC = 1e-9  # placements whose objectives are this close count as equally good
SOLVER_SLACK_FRAC = 1e-6  # well above the solver's feasibility tolerance of 1e-7
LEAST_COPY_HOURS = 1e-6  # below it, the solver's remainder where it means none


@dataclass(frozen=True)
class Pool:
    """Copies of one configuration in one region, all numbers of one copy.

    `power_w` is at work, with host and the site's overhead; `embodied_g_per_h` what an hour of work
    carries of the hardware's making; `intensity_g_per_kwh` has shape (n_hours,).
    """

    name: str
    gpu: str
    gpu_count: int
    region: str
    copies: float
    power_w: float
    embodied_g_per_h: float
    price_usd_per_h: float
    intensity_g_per_kwh: Array


@dataclass(frozen=True)
class Job:
    """Million tokens of one model, to be made from hour `release_h` on and before `deadline_h`.

    Hour t of the plan runs from t to t + 1. `rate_requests_per_s` is the load at which a copy works
    on it; its P99 TTFT must then keep `ttft_target_s` (infinite: any).
    """

    name: str
    model: str
    mtoken: float
    release_h: int
    deadline_h: int
    rate_requests_per_s: float
    ttft_target_s: float = np.inf


@dataclass(frozen=True)
class Placement:
    """A plan: one row a job, pool and hour with work, and its totals.

    Columns of `hours`: job, pool, region, hour, copy_hours, mtoken, carbon_g, cost_usd.
    """

    hours: pd.DataFrame
    carbon_g: float
    cost_usd: float


def hour_of_work(
    machine: Machine[Array], gpu_count: int, holding: Holding, *, wear_frac: float = 0.0
) -> tuple[float, float]:
    """Power in W at work, host and site included, and embodied carbon in g an hour: medians.

    Waiting hours are not charged: work that can wait fills hours that are there.
    """
    one_hour = 1 / MTOKEN_PER_H  # the tokens per s that make a million in an hour
    nothing = np.zeros_like(machine.idle_w)
    working = replace(machine, idle_w=nothing, host_idle_w=nothing)
    kwh = kwh_per_mtoken(working, gpu_count, one_hour)
    made_g = embodied_g_per_mtoken(
        machine, gpu_count, one_hour, holding=holding, wear_frac=wear_frac
    )
    return float(np.median(kwh)) * 1000, float(np.median(made_g))


def pools_of(
    offers: pd.DataFrame,
    machines: Mapping[str, Machine[Array]],
    prices: Mapping[str, float],
    hours: int,
) -> list[Pool]:
    """Pools from a table of offers, on each region's yearly average in every hour.

    Columns of `offers`: gpu, gpu_count, holding, region, copies. `machines` and `prices` (USD per
    GPU-hour) are by card. Raises InputError for a card that either lacks, or an unknown region.
    """
    pools = []
    for offer in offers.itertuples(index=False):
        if offer.gpu not in machines or offer.gpu not in prices:
            raise _plan_error("card without machine or price", offer.gpu, "both", "offers")
        power_w, embodied_g = hour_of_work(machines[offer.gpu], offer.gpu_count, offer.holding)
        label = configuration_label(offer.gpu, offer.gpu_count)
        pools.append(
            Pool(
                name=f"{label}, {offer.holding}, {offer.region}",
                gpu=offer.gpu,
                gpu_count=int(offer.gpu_count),
                region=offer.region,
                copies=float(offer.copies),
                power_w=power_w,
                embodied_g_per_h=embodied_g,
                price_usd_per_h=offer.gpu_count * prices[offer.gpu],
                intensity_g_per_kwh=constant_profile(offer.region, hours),
            )
        )
    return pools


def serving_speeds(pools: list[Pool], jobs: list[Job], runs: pd.DataFrame) -> Array:
    """Tokens per s of one copy of each pool on each job, shape (n_jobs, n_pools).

    From runs of the job's model at its rate (replicates averaged); 0 where there is none, or its
    P99 TTFT misses the job's target.
    """
    cells = runs.groupby([*CONFIGURATION, "rate_requests_per_s"])
    measured = cells[["throughput_tokens_per_s", "ttft_p99_s"]].mean()
    speeds = np.zeros((len(jobs), len(pools)))
    for j, job in enumerate(jobs):
        for p, pool in enumerate(pools):
            cell = (job.model, pool.gpu, pool.gpu_count, job.rate_requests_per_s)
            if cell in measured.index and measured.loc[cell, "ttft_p99_s"] <= job.ttft_target_s:
                speeds[j, p] = measured.loc[cell, "throughput_tokens_per_s"]
    return speeds


def plan_placement(
    pools: list[Pool], jobs: list[Job], speeds: Array, objective: Objective = "carbon"
) -> Placement:
    """The cleanest placement, the cheapest among equally clean ones; or the other way round.

    `speeds` (n_jobs, n_pools) are tokens per s of one copy; 0 where a pool can't serve a job.
    Raises InputError for pools with profiles of unlike length, a job that can't be one, or work
    that does not fit: the line names the job and how much of it fits.
    """
    n_hours = _check_pools(pools)
    _check_jobs(pools, jobs, speeds, n_hours)
    slots = _slots(pools, jobs, speeds)
    carbon_g, cost_usd = slots["carbon_g_per_h"].to_numpy(), slots["cost_usd_per_h"].to_numpy()
    work, room = _work(slots, len(jobs)), _room(slots, len(pools), n_hours)
    amounts = np.array([job.mtoken for job in jobs])
    copies = np.repeat([pool.copies for pool in pools], n_hours)
    _check_fits(jobs, work, room, amounts, copies)
    first, then = (carbon_g, cost_usd) if objective == "carbon" else (cost_usd, carbon_g)
    best = linprog(first, A_ub=room, b_ub=copies, A_eq=work, b_eq=amounts)
    limit = _solved(best).fun * (1 + TIE_SLACK_FRAC)
    tied = linprog(
        then,
        A_ub=vstack([room, csr_array(first[np.newaxis])]),
        b_ub=np.append(copies, limit),
        A_eq=work,
        b_eq=amounts,
    )
    return _placement(pools, jobs, slots, _solved(tied).x)


def _slots(pools: list[Pool], jobs: list[Job], speeds: Array) -> pd.DataFrame:
    rows = [
        (j, p, t, speeds[j, p] * MTOKEN_PER_H, _carbon_g_per_h(pool)[t], pool.price_usd_per_h)
        for j, job in enumerate(jobs)
        for p, pool in enumerate(pools)
        if speeds[j, p] > 0
        for t in range(job.release_h, job.deadline_h)
    ]
    columns = ["job", "pool", "hour", "mtoken_per_h", "carbon_g_per_h", "cost_usd_per_h"]
    return pd.DataFrame(rows, columns=columns)


def _carbon_g_per_h(pool: Pool) -> Array:
    return pool.power_w / 1000 * pool.intensity_g_per_kwh + pool.embodied_g_per_h


def _work(slots: pd.DataFrame, n_jobs: int) -> csr_array:
    where = (slots["job"].to_numpy(), np.arange(len(slots)))
    return csr_array((slots["mtoken_per_h"].to_numpy(), where), shape=(n_jobs, len(slots)))


def _room(slots: pd.DataFrame, n_pools: int, n_hours: int) -> csr_array:
    rows = (slots["pool"] * n_hours + slots["hour"]).to_numpy()
    ones = np.ones(len(slots))
    return csr_array((ones, (rows, np.arange(len(slots)))), shape=(n_pools * n_hours, len(slots)))


def _placement(
    pools: list[Pool], jobs: list[Job], slots: pd.DataFrame, copy_hours: Array
) -> Placement:
    used = slots.assign(copy_hours=copy_hours)
    used = used[used["copy_hours"] > LEAST_COPY_HOURS].reset_index(drop=True)
    hours = pd.DataFrame(
        {
            "job": [jobs[j].name for j in used["job"]],
            "pool": [pools[p].name for p in used["pool"]],
            "region": [pools[p].region for p in used["pool"]],
            "hour": used["hour"],
            "copy_hours": used["copy_hours"],
            "mtoken": used["copy_hours"] * used["mtoken_per_h"],
            "carbon_g": used["copy_hours"] * used["carbon_g_per_h"],
            "cost_usd": used["copy_hours"] * used["cost_usd_per_h"],
        }
    )
    return Placement(hours, float(hours["carbon_g"].sum()), float(hours["cost_usd"].sum()))


def _solved(result: OptimizeResult) -> OptimizeResult:
    if not result.success:
        raise ArithmeticError(f"HiGHS stopped: {result.message}")
    return result


def _check_pools(pools: list[Pool]) -> int:
    lengths = {pool.intensity_g_per_kwh.size for pool in pools}
    if len(lengths) != 1 or 0 in lengths:
        raise _plan_error("hourly profiles", sorted(lengths), "one length for every pool", "pools")
    for pool in pools:
        numbers = (pool.copies, pool.power_w, pool.embodied_g_per_h, pool.price_usd_per_h)
        if not all(np.isfinite(number) and number >= 0 for number in numbers):
            raise _plan_error("pool with a negative number", numbers, "0 or more", pool.name)
    return lengths.pop()


def _check_jobs(pools: list[Pool], jobs: list[Job], speeds: Array, n_hours: int) -> None:
    if not jobs or speeds.shape != (len(jobs), len(pools)):
        shape = (len(jobs), len(pools))
        raise _plan_error("speeds", speeds.shape, f"shape {shape}, at least one job", "jobs")
    for j, job in enumerate(jobs):
        if not 0 <= job.release_h < job.deadline_h <= n_hours:
            window = (job.release_h, job.deadline_h)
            raise _plan_error("window of hours", window, f"within 0 to {n_hours}", job.name)
        if not (np.isfinite(job.mtoken) and job.mtoken > 0):
            raise _plan_error("amount of work", job.mtoken, "million tokens above 0", job.name)
        if not (speeds[j] > 0).any():
            what = "no pool serves the job within its latency target"
            raise _plan_error(what, f"{job.ttft_target_s:g} s", "a pool that keeps it", job.name)


def _check_fits(
    jobs: list[Job], work: csr_array, room: csr_array, amounts: Array, copies: Array
) -> None:
    most = linprog(
        -work.sum(axis=0), A_ub=vstack([room, work]), b_ub=np.concatenate([copies, amounts])
    )
    served = work @ _solved(most).x
    short = served < amounts * (1 - TIE_SLACK_FRAC)
    if short.any():
        j = int(np.argmax(amounts - served))
        got = (
            f"{amounts[j]:g} Mtoken, of which {served[j]:.4g} fit before hour {jobs[j].deadline_h}"
        )
        raise _plan_error("more work than the pools can do", got, "work that fits", jobs[j].name)


def _plan_error(what: str, got: object, expected: str, where: str) -> InputError:
    do = "change the plan: more copies, a later deadline, a looser target, or less work"
    return InputError(what, got=got, expected=expected, where=where, do=do)
