"""One benchmark run: its schema, its readers and its frame.

The only module that knows other programs' field names. Everything it hands on is in seconds,
tokens and requests per second.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hetinfer.errors import InputError
from hetinfer.hardware import load_table, short_name
from hetinfer.paths import data_dir, write_atomically

LATENCIES = ("ttft", "tpot", "itl")
STATISTICS = ("mean", "std", "p50", "p90", "p95", "p99", "p100")
THROUGHPUT_TOLERANCE_FRAC = 1e-3  # files that round their throughput still agree with themselves


@dataclass(frozen=True)
class Latency:
    """Summary of one latency over a run's requests, in seconds; NaN where it was not recorded."""

    mean_s: float = math.nan
    std_s: float = math.nan
    p50_s: float = math.nan
    p90_s: float = math.nan
    p95_s: float = math.nan
    p99_s: float = math.nan
    p100_s: float = math.nan


@dataclass(frozen=True)
class Run:
    """One benchmark run: `prompts` requests sent at one offered rate to one configuration.

    TTFT is the time to first token, TPOT the mean time per output token after the first of a
    request, ITL the gap between two streamed chunks. `rate_requests_per_s` is the offered rate
    (infinite when all requests are sent at once). `evidence` is `recorded` or `measured`.
    """

    run_id: str
    evidence: str
    started: str
    engine: str
    engine_version: str
    model: str
    gpu: str
    gpu_count: int
    dataset: str
    prompts: int
    rate_requests_per_s: float
    burstiness: float
    replicate: int
    duration_s: float
    completed: int
    input_tokens: int
    output_tokens: int
    throughput_requests_per_s: float
    goodput_requests_per_s: float
    output_throughput_tokens_per_s: float
    throughput_tokens_per_s: float
    ttft: Latency
    tpot: Latency
    itl: Latency
    source_file: str


CONFIGURATION = ["model", "gpu", "gpu_count"]
CELL = [*CONFIGURATION, "dataset", "prompts", "rate_requests_per_s", "burstiness"]
SCALARS = [f.name for f in fields(Run) if f.name not in LATENCIES]
RUN_COLUMNS = [
    *SCALARS[:-1],
    *(f"{latency}_{statistic}_s" for latency in LATENCIES for statistic in STATISTICS),
    SCALARS[-1],
]


def frame(runs: Sequence[Run]) -> pd.DataFrame:
    """The runs as a frame, one row a run, with the columns `RUN_COLUMNS`, in the order given."""
    if not runs:
        raise InputError(
            "no runs", got="0", expected="at least one run", where="frame", do="read some first"
        )
    rows = []
    for run in runs:
        row = asdict(run)
        for latency in LATENCIES:
            summary = row.pop(latency)
            row |= {f"{latency}_{name}": value for name, value in summary.items()}
        rows.append(row)
    return pd.DataFrame(rows)[RUN_COLUMNS]


def runs_of(table: pd.DataFrame) -> list[Run]:
    """The runs of a frame with the columns `RUN_COLUMNS`: the inverse of `frame`."""
    return [_run_of(row) for row in table.to_dict("records")]


def _run_of(row: dict[str, Any]) -> Run:
    values: dict[str, Any] = {name: row[name] for name in SCALARS}
    for latency in LATENCIES:
        summary = {f"{name}_s": row[f"{latency}_{name}_s"] for name in STATISTICS}
        values[latency] = Latency(**summary)
    return Run(**values)


def load_recorded() -> pd.DataFrame:
    """The study's 130 runs, `data/recorded/runs.csv`, as a frame in seconds; evidence `recorded`.

    Source: raw results of IOG-Foundation/llm-inference-benchmarks at 4990a80, Apache-2.0.
    """
    path = data_dir("recorded") / "runs.csv"
    table = load_table(path).rename(
        columns={
            "request_rate_qps": "rate_requests_per_s",
            "request_throughput_rps": "throughput_requests_per_s",
            "request_goodput_rps": "goodput_requests_per_s",
            "output_throughput_tps": "output_throughput_tokens_per_s",
            "total_throughput_tps": "throughput_tokens_per_s",
        }
    )
    for latency in LATENCIES:
        for statistic in STATISTICS:
            table[f"{latency}_{statistic}_s"] = table[f"{latency}_{statistic}_ms"] / 1000
    return table.assign(evidence="recorded")[RUN_COLUMNS]


def load_measured() -> pd.DataFrame:
    """Every run under `data/measured/`, one table a campaign; evidence `measured`.

    An empty folder gives an empty frame with the same columns: measuring is optional.
    """
    tables = [load_runs(path) for path in sorted(data_dir("measured").glob("*/runs.csv"))]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=RUN_COLUMNS)


def load_runs(path: Path) -> pd.DataFrame:
    """A table of runs that `save_runs` wrote; InputError names columns that are missing."""
    table = load_table(path)
    missing = [name for name in RUN_COLUMNS if name not in table]
    if missing:
        raise InputError(
            "not a table of runs",
            got=f"no column {missing[0]}",
            expected=f"the {len(RUN_COLUMNS)} columns of RUN_COLUMNS",
            where=path,
            do="import the result files again",
        )
    text = ["dataset", "engine_version", "started"]
    return table.assign(**{name: table[name].fillna("") for name in text})[RUN_COLUMNS]


def save_runs(runs: pd.DataFrame, path: Path) -> None:
    """Write a frame of runs as CSV, every digit kept, atomically."""
    write_atomically(path, runs[RUN_COLUMNS].to_csv(index=False))


def average_replicates(runs: pd.DataFrame) -> pd.DataFrame:
    """One row a cell (configuration and rate): numbers averaged over replicates, text of the first.

    Averaging is arithmetic, on every numeric column; `replicate` becomes their count.
    """
    numeric = [
        name
        for name in runs.select_dtypes("number").columns
        if name not in CELL and name != "replicate"
    ]
    groups = runs.groupby(CELL, sort=False, dropna=False)
    averaged = groups[numeric].mean()
    text = [name for name in runs.columns if name not in CELL and name not in numeric]
    first = groups[text].first().assign(replicate=groups.size())
    return averaged.join(first).reset_index()[list(runs.columns)]


def number_replicates(runs: Iterable[Run]) -> list[Run]:
    """The runs with `replicate` counted within each cell by start time, and `run_id` made of it."""
    counted: dict[tuple[object, ...], int] = {}
    numbered = {}
    ordered = sorted(enumerate(runs), key=lambda pair: (pair[1].started, pair[0]))
    for position, run in ordered:
        cell = tuple(getattr(run, name) for name in CELL)
        counted[cell] = counted.get(cell, 0) + 1
        numbered[position] = replace(
            run, replicate=counted[cell], run_id=run_id(run, counted[cell])
        )
    return [numbered[position] for position in range(len(numbered))]


def run_id(run: Run, replicate: int) -> str:
    """A run's name: model/configuration/rate/replicate, such as `phi-4/1xh100-pcie/16qps/r1`."""
    rate = f"{run.rate_requests_per_s:g}qps"
    return f"{short_name(run.model)}/{run.gpu_count}x{run.gpu}/{rate}/r{replicate}"


def check_run(run: Run) -> Run:
    """The run itself when it agrees with itself; InputError says what contradicts what."""
    _require(run, run.duration_s > 0, "duration", run.duration_s, "seconds above 0")
    _require(run, run.completed > 0, "completed requests", run.completed, "at least 1")
    _require(
        run,
        run.completed <= run.prompts,
        "completed requests",
        run.completed,
        f"at most the {run.prompts} sent",
    )
    _require(
        run, run.rate_requests_per_s > 0, "request rate", run.rate_requests_per_s, "above 0 or inf"
    )
    _require(run, run.gpu_count >= 1, "GPU count", run.gpu_count, "at least 1")
    _require(
        run,
        min(run.input_tokens, run.output_tokens) >= 0,
        "tokens",
        min(run.input_tokens, run.output_tokens),
        "0 or more",
    )
    _check_throughput(run)
    for name in LATENCIES:
        _check_latency(run, name, getattr(run, name))
    return run


def find_duplicate(runs: Sequence[Run]) -> tuple[Run, Run] | None:
    """The first two runs that are one run read twice: same cell, start and duration."""
    seen: dict[tuple[object, ...], Run] = {}
    for run in runs:
        key = (*(getattr(run, name) for name in CELL), run.started, run.duration_s)
        if key in seen:
            return seen[key], run
        seen[key] = run
    return None


def _check_throughput(run: Run) -> None:
    tokens = run.input_tokens + run.output_tokens
    for what, got, expected in (
        ("request throughput", run.throughput_requests_per_s, run.completed / run.duration_s),
        (
            "output throughput",
            run.output_throughput_tokens_per_s,
            run.output_tokens / run.duration_s,
        ),
        ("total throughput", run.throughput_tokens_per_s, tokens / run.duration_s),
    ):
        _require(
            run,
            math.isclose(got, expected, rel_tol=THROUGHPUT_TOLERANCE_FRAC),
            what,
            f"{got:g}",
            f"{expected:g}, its count over {run.duration_s:g} s",
        )
    if not math.isnan(run.goodput_requests_per_s):
        highest = run.throughput_requests_per_s * (1 + THROUGHPUT_TOLERANCE_FRAC)
        _require(
            run,
            0 <= run.goodput_requests_per_s <= highest,
            "goodput",
            f"{run.goodput_requests_per_s:g}",
            f"between 0 and the throughput {run.throughput_requests_per_s:g}",
        )


def _check_latency(run: Run, name: str, latency: Latency) -> None:
    values = asdict(latency)
    known = {key: value for key, value in values.items() if not math.isnan(value)}
    for key, value in known.items():
        _require(run, value >= 0, f"{name} {key}", value, "0 s or more")
    percentiles = [(key, known[key]) for key in known if key.startswith("p")]
    for (low_key, low), (high_key, high) in pairwise(percentiles):
        _require(
            run,
            low <= high,
            f"{name} percentiles out of order",
            f"{low_key} {low:g} above {high_key} {high:g}",
            "rising values",
        )


def _require(run: Run, holds: bool, what: str, got: object, expected: str) -> None:
    if not holds:
        raise InputError(
            what,
            got=got,
            expected=expected,
            where=run.source_file,
            do="correct or remove that file",
        )


def percentiles_s(values_s: np.ndarray) -> Latency:
    """Summary of latencies in seconds, shape (n,): vLLM's own definitions, linear percentiles."""
    if values_s.size == 0:
        return Latency()
    p50, p90, p95, p99, p100 = np.percentile(values_s, [50, 90, 95, 99, 100])
    return Latency(
        float(values_s.mean()),
        float(values_s.std()),
        float(p50),
        float(p90),
        float(p95),
        float(p99),
        float(p100),
    )
