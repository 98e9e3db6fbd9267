"""A measured run, request by request: against its schedule, over time, and in its steady middle."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from hetinfer.errors import InputError
from hetinfer.intervals import mean_interval
from hetinfer.measurement.client import lags_s, schedule_s
from hetinfer.measurement.records import OWN, POWER, RUN
from hetinfer.metrics import goodput_requests_per_s
from hetinfer.vllm_results import load_requests

BATCHES = 20  # few enough that a batch outlasts the queue's memory, enough for a t interval

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class BatchMeans:
    """A mean over a run with its interval from batch means; in the unit of its values."""

    mean: float
    low: float
    high: float


def load_timeline(path: Path) -> pd.DataFrame:
    """The requests of a measured run's file with their schedule, one row each.

    Columns of `load_requests`, and: intended_s (since the run began), lag_s behind it, and
    ttft_from_intended_s = lag + TTFT, what a user waits who does not know of the client's delay.
    """
    told = json.loads(path.read_text())
    if OWN not in told:
        raise InputError(
            "not measured here",
            got=f"no field {OWN}",
            expected="a run's file of a campaign",
            where=path,
            do="name a file in data/measured/CAMPAIGN/runs",
        )
    requests = load_requests(path)
    intended_s = schedule_s(
        len(requests), float(told["request_rate"]), told[OWN]["seed"], told["burstiness"]
    )
    sent = requests["start_s"].notna().to_numpy()
    lag_s = np.full(len(requests), np.nan)
    lag_s[sent] = lags_s(requests["start_s"].to_numpy()[sent], intended_s[sent])
    return requests.assign(
        intended_s=intended_s, lag_s=lag_s, ttft_from_intended_s=lag_s + requests["ttft_s"]
    )


def load_power(path: Path) -> pd.DataFrame:
    """The power samples beside a run's file, time_s since the run began; empty where none were had.

    Columns are those of `power.Sample`.
    """
    samples = path.with_name(path.name.removesuffix(RUN) + POWER)
    if not samples.is_file():
        return pd.DataFrame(columns=["time_s", "device", "power_w"])
    told = json.loads(path.read_text())
    intended_s = load_timeline(path)["intended_s"].to_numpy()
    began_s = float((np.array(told["start_times"]) - intended_s).min())
    table = pd.read_csv(samples)
    return table.assign(time_s=table["time_s"] - began_s)


def over_time(timeline: pd.DataFrame, step_s: float) -> pd.DataFrame:
    """A run in steps: time_s, mean TTFT and TPOT of the requests that end in each, tokens per s.

    Output tokens are counted at their request's end, so short steps are rough. NaN where none ends.
    """
    done = timeline.dropna(subset=["ttft_s"])
    end_s = done["start_s"] + done["e2el_s"]
    step = np.floor(end_s / step_s).astype(int)
    groups = done.assign(step=step).groupby("step")
    table = groups[["ttft_s", "tpot_s"]].mean()
    table["throughput_tokens_per_s"] = groups["output_tokens"].sum() / step_s
    table = table.reindex(range(int(step.max()) + 1))
    return table.assign(time_s=(table.index + 0.5) * step_s).reset_index(drop=True)


def steady_part(timeline: pd.DataFrame, warmup_s: float, drain_s: float) -> pd.DataFrame:
    """The requests meant to be sent after the warm-up and before the drain, in order of that.

    Raises InputError if none is left.
    """
    last_s = timeline["intended_s"].max()
    inside = timeline["intended_s"].between(warmup_s, last_s - drain_s)
    if not inside.any():
        raise InputError(
            "no steady state",
            got=f"a run of {last_s:.0f} s of arrivals",
            expected=f"more than {warmup_s + drain_s:g} s, what is cut off",
            where="the campaign's warmup_s and drain_s",
            do="send for longer",
        )
    return timeline[inside].sort_values("intended_s", ignore_index=True)


def batch_means(values: Numbers, batches: int = BATCHES) -> BatchMeans:
    """Mean of a correlated series (n,) with a 95 % interval from the means of successive batches.

    m +- t(b - 1) s_b / sqrt(b), with s_b the standard deviation of b batch means. Values that do
    not fill a batch are left out at the start, where warm-up lingers. Raises InputError for fewer
    than two values a batch. Source: Law and Kelton, Simulation Modeling and Analysis.
    """
    size = len(values) // batches
    if size < 2:
        raise InputError(
            "too few values",
            got=len(values),
            expected=f"at least {2 * batches}, two for each of {batches} batches",
            where="batch_means",
            do="measure for longer",
        )
    means = values[len(values) - size * batches :].reshape(batches, size).mean(axis=1)
    return BatchMeans(*mean_interval(means))


def goodput_by_target(
    timeline: pd.DataFrame,
    ttft_targets_s: Sequence[float],
    tpot_targets_s: Sequence[float] = (),
) -> pd.DataFrame:
    """Goodput of a run's requests at each TTFT target, alone and with each TPOT target.

    Columns: ttft_target_s, tpot_target_s (infinite for none), goodput_requests_per_s, good_frac of
    the requests sent. The time is that of their arrivals, n / offered rate.
    """
    sent = len(timeline)
    gaps = max(sent - 1, 1)
    span_s = (timeline["intended_s"].max() - timeline["intended_s"].min()) * sent / gaps
    done = timeline.dropna(subset=["ttft_s"])
    tpot_s = done["tpot_s"].fillna(0.0).to_numpy()  # one token has no time per further token
    rows = []
    for ttft_target_s in ttft_targets_s:
        for tpot_target_s in (np.inf, *tpot_targets_s):
            goodput = goodput_requests_per_s(
                done["ttft_s"].to_numpy(),
                span_s,
                ttft_target_s=ttft_target_s,
                tpot_s=tpot_s,
                tpot_target_s=tpot_target_s,
            )
            rows.append((ttft_target_s, tpot_target_s, goodput, goodput * span_s / sent))
    names = ["ttft_target_s", "tpot_target_s", "goodput_requests_per_s", "good_frac"]
    return pd.DataFrame(rows, columns=names)
