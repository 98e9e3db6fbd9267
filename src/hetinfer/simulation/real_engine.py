"""The simulator against a real engine: fitted to some measured runs, judged by the others.

Campaign `cpu-prefix-cache`: vLLM on a CPU, three servers (replicates) a variant, each with runs at
4, 2 and 1 requests per second in that order. Fitted are the variant `cached` at 4 and 1, all
replicates; predicted are `cached` at 2, and everything of `uncached` and `fresh`, whose engines
differ in nothing but caching and texts. Split and form were decided on an earlier set of these
runs, which other work on the machine had disturbed (medians held out: throughput 0.2 %, TPOT 7.5 %,
TTFT 5.1 %; TPOT at 4 requests per second 22 %). The runs that ship were made after that, on a
machine that had nothing else to do, and nothing of them was looked at before they were judged.

Form: the step time is that of the study's fits, fitted to the steps that the arrivals of tokens
show (`steps.py`), which no queue blurs; then `fit_engine` finds the front end from each run's
duration and medians, and may move the step time by a few per cent. A host of two cores now and then
stands still: means and tails are not fitted.

Tried on the earlier runs, by errors at the fitted rates: `fit_engine` alone with all statistics,
whose tails then lengthen every step (median TTFT off by 44 % in replicate 1); alone with durations
and medians (6 to 66 %, half of it where the host was disturbed, for it trades compute against the
front end's delay); steps first, which is used.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd

from hetinfer.errors import InputError
from hetinfer.simulation.calibration import (
    FRONT_END,
    PRIOR_FRONT_END,
    STEP_TIME,
    fit_engine,
)
from hetinfer.simulation.engine import Engine
from hetinfer.simulation.measured import (
    MeasuredRun,
    engine_of,
    measured_replay,
    measured_statistics,
)
from hetinfer.simulation.replay import STATISTICS, replay_statistics
from hetinfer.simulation.step_time import StepTime
from hetinfer.simulation.steps import fit_step_time, measured_steps
from hetinfer.values import Value, quote
from hetinfer.workload import Floats

CAMPAIGN = "cpu-prefix-cache"
FITTED_VARIANT = "cached"
FITTED_RATES = (4.0, 1.0)
# how far, in log, `fit_engine` may move what the steps have told, what they cannot tell, and what
# the server itself has said
FREE_OF_STEPS: Mapping[str, float] = {
    **dict.fromkeys(STEP_TIME, 0.02),
    **dict.fromkeys(FRONT_END, 1.0),
    "kv_tokens": 1e-3,
}
FITTED_STATISTICS = ("duration_s", "tpot_p50_s", "ttft_p50_s", "itl_p50_s")
SEQUENCE_FRAC = 0.1  # of a token's compute: where the search begins
TARGETS: Mapping[str, float] = {
    "throughput_requests_per_s": 0.03,
    "tpot_p50_s": 0.08,
    "ttft_p50_s": 0.15,
}
SHORT_NAMES: Mapping[str, str] = {  # in the names of quoted values
    "throughput": "throughput_requests_per_s",
    "tpot_p50": "tpot_p50_s",
    "ttft_p50": "ttft_p50_s",
}
TABLE = ["variant", "rate_requests_per_s", "replicate", "set", "statistic"]


def which_set(run: MeasuredRun) -> str:
    """Whether a run is `fitted` or `held out`."""
    variant, rate = run.run.variant, run.run.rate_requests_per_s
    fitted = variant == FITTED_VARIANT and rate in FITTED_RATES
    return "fitted" if fitted else "held out"


def fit_measured(runs: Sequence[MeasuredRun]) -> Engine:
    """The engine fitted to those of the runs that are to be fitted; `fit_engine` says when not."""
    fitted = [run for run in runs if which_set(run) == "fitted"]
    if not fitted:
        raise InputError(
            "no run to fit",
            got=f"{len(runs)} runs",
            expected=f"{FITTED_VARIANT} at {FITTED_RATES} requests per second among them",
            where="fit_measured",
            do=f"measure the campaign {CAMPAIGN}",
        )
    prior, measured = engine_from_steps(fitted), measured_statistics(fitted)
    measured = np.where(np.isin(STATISTICS, FITTED_STATISTICS), measured, np.nan)
    engine, _ = fit_engine(prior, measured_replay(fitted), measured, prior, free=FREE_OF_STEPS)
    return engine


def engine_from_steps(runs: Sequence[MeasuredRun]) -> Engine:
    """The engine whose step time is fitted to the runs' steps alone; its front end is the prior."""
    step_time = fit_step_time(measured_steps(runs), first_guess(measured_statistics(runs), runs))
    return engine_of(runs[0].settings, step_time, PRIOR_FRONT_END)


def first_guess(measured: Floats, runs: Sequence[MeasuredRun]) -> StepTime:
    """Where the search begins: orders of magnitude, from what the runs show at their lightest load.

    A step alone is the least median inter-token latency, half of it launch, half weights; the
    least median TTFT is spent on a prompt's tokens; to read a whole prompt as context takes a tenth
    of a step.
    """
    column = dict(zip(STATISTICS, measured.T, strict=True))
    alone_s = float(column["itl_p50_s"].min())
    prompt_tokens = float(np.mean([run.requests["input_tokens"].mean() for run in runs]))
    compute_s = float(column["ttft_p50_s"].min()) / prompt_tokens
    return StepTime(
        launch_s=alone_s / 2,
        weights_s=alone_s / 2,
        compute_s=compute_s,
        sequence_s=SEQUENCE_FRAC * compute_s,
        context_s=SEQUENCE_FRAC * alone_s / prompt_tokens,
    )


def real_engine_table(engine: Engine, runs: Sequence[MeasuredRun]) -> pd.DataFrame:
    """Simulated beside measured, one row a run and statistic; `error_frac` as in `parity_table`.

    Each variant with its own settings, the fitted engine's step time and front end.
    """
    tables = []
    for settings in dict.fromkeys(run.settings for run in runs):
        own = [run for run in runs if run.settings == settings]
        simulated = replay_statistics(
            engine_of(settings, engine.step_time, engine.front_end), measured_replay(own)
        )
        pair = [_long(statistics, own) for statistics in (simulated, measured_statistics(own))]
        tables.append(pair[0].assign(measured=pair[1]["value"]))
    table = pd.concat(tables, ignore_index=True).rename(columns={"value": "simulated"})
    return table.assign(error_frac=table["simulated"] / table["measured"] - 1)


def real_engine_errors(table: pd.DataFrame, by: Sequence[str] = ("set",)) -> pd.DataFrame:
    """Absolute relative errors by set (or other columns) and statistic, beside the targets.

    `within` counts the runs whose error is within the target; `replicate_frac` is how far a run is
    from the mean of its replicates, whose arrivals differ too: the mean of |run / mean - 1|.
    """
    cell = ["variant", "rate_requests_per_s", "statistic"]
    spread = (table["measured"] / table.groupby(cell)["measured"].transform("mean") - 1).abs()
    target = table["statistic"].map(TARGETS)
    errors = table.assign(
        error=table["error_frac"].abs(), spread=spread, target_frac=target,
    )  # fmt: skip
    errors = errors.assign(within=errors["error"] <= errors["target_frac"])
    grouped = errors.groupby([*by, "statistic"], sort=False)
    return grouped.agg(
        median_frac=("error", "median"),
        p90_frac=("error", lambda e: e.quantile(0.9)),
        replicate_frac=("spread", "mean"),
        target_frac=("target_frac", "first"),
        within=("within", "sum"),
        n=("error", "size"),
    ).reset_index()


def quoted_errors(errors: pd.DataFrame, chapter: str) -> list[Value]:
    """What a chapter quotes of the held-out runs: median errors in %, and the runs in target."""
    held_out = errors.set_index(["set", "statistic"]).loc["held out"]
    said = partial(quote, evidence="simulated", chapter=chapter)
    quoted = [said("real_engine_held_out", int(held_out["n"].max()), unit="runs")]
    for name, statistic in SHORT_NAMES.items():
        error = 100 * float(held_out.loc[statistic, "median_frac"])
        within = int(held_out.loc[statistic, "within"])
        quoted += [
            said(f"real_engine_error_{name}", error, unit="%", decimals=1),
            said(f"real_engine_within_{name}", within, unit="runs"),
        ]
    return quoted


def _long(statistics: Floats, runs: Sequence[MeasuredRun]) -> pd.DataFrame:
    table = pd.DataFrame(statistics, columns=list(STATISTICS))
    prompts = [run.run.prompts for run in runs]
    table = table.assign(
        throughput_requests_per_s=np.array(prompts) / table["duration_s"],
        variant=[run.run.variant for run in runs],
        rate_requests_per_s=[run.run.rate_requests_per_s for run in runs],
        replicate=[run.replicate for run in runs],
        set=[which_set(run) for run in runs],
    )
    shown = [*TARGETS, "ttft_p99_s"]
    return table.melt(TABLE[:-1], shown, var_name="statistic")
