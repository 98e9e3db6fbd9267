"""One benchmark run: its schema, its tables and its frame; what makes one run contradict itself.

Everything in it is in seconds, tokens and requests per second.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain, pairwise
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
FLOAT_SLACK_FRAC = 1e-9  # milliseconds to seconds, and a mean of equal values, lose last digits


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
    (infinite when all requests are sent at once), `max_concurrency` the most requests that a client
    kept in flight (infinite without a limit). `evidence` is `recorded` or `measured`. `variant` is
    the arm of a measured experiment, such as `uncached`; it is empty where there is but one.
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
    max_concurrency: float
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
    variant: str = ""


CONFIGURATION = ["model", "gpu", "gpu_count"]
LOAD = ["dataset", "prompts", "rate_requests_per_s", "burstiness", "max_concurrency"]
CELL = [*CONFIGURATION, *LOAD, "variant"]
TEXT = [f.name for f in fields(Run) if f.type is str]
SCALARS = [f.name for f in fields(Run) if f.name not in (*LATENCIES, "source_file")]
RUN_COLUMNS = [
    *SCALARS,
    *(f"{latency}_{statistic}_s" for latency in LATENCIES for statistic in STATISTICS),
    "source_file",
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
    rows = table[RUN_COLUMNS].to_dict("records")
    return [_run_of({str(name): value for name, value in row.items()}) for row in rows]


def load_recorded() -> pd.DataFrame:
    """The study's 130 runs, `data/recorded/runs.csv`, as a frame in seconds; evidence `recorded`.

    Source: raw results of IOG-Foundation/llm-inference-benchmarks at 4990a80, Apache-2.0.
    """
    path = data_dir("recorded") / "runs.csv"
    table = load_table(path, text=TEXT).rename(
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
    return table.assign(evidence="recorded", max_concurrency=math.inf, variant="")[RUN_COLUMNS]


def load_measured() -> pd.DataFrame:
    """Every run under `data/measured/`, one table a campaign; evidence `measured`.

    An empty folder gives an empty frame with the same columns: measuring is optional.
    """
    tables = [load_runs(path) for path in sorted(data_dir("measured").glob("*/runs.csv"))]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=RUN_COLUMNS)


def load_runs(path: Path) -> pd.DataFrame:
    """A table of runs that `save_runs` wrote; InputError names columns that are missing."""
    table = load_table(path, text=TEXT)
    missing = [name for name in RUN_COLUMNS if name not in table]
    if missing:
        raise InputError(
            "not a table of runs",
            got=f"no column {missing[0]}",
            expected=f"the {len(RUN_COLUMNS)} columns of RUN_COLUMNS",
            where=path,
            do="import the result files again",
        )
    return table[RUN_COLUMNS]


def save_runs(runs: pd.DataFrame, path: Path) -> None:
    """Write a frame of runs as CSV, every digit kept, atomically."""
    write_atomically(path, runs[RUN_COLUMNS].to_csv(index=False, lineterminator="\n"))


def add_measured(runs: Sequence[Run], campaign: str) -> Path:
    """Add runs to `data/measured/CAMPAIGN/runs.csv`, numbered after all measured ones; its path.

    Raises InputError for a name that is no plain folder name, or a run that is measured already.
    """
    path = campaign_path(campaign)
    earlier = runs_of(load_measured())
    duplicate = find_duplicate([*earlier, *runs])
    if duplicate:
        raise InputError(
            "duplicate run",
            got=f"{duplicate[0].run_id or duplicate[0].model} twice",
            expected="each run once under data/measured",
            where=" and ".join(run.source_file for run in duplicate),
            do="leave the second file out",
        )
    added = frame(number_replicates(runs, after=earlier))
    kept = [load_runs(path)] if path.is_file() else []
    save_runs(pd.concat([*kept, added], ignore_index=True), path)
    return path


def target_path(campaign: str, output: Path | None) -> Path | None:
    """Where runs are to be written: a campaign's table, a .csv file, or nowhere.

    Raises InputError for both at once, a campaign that is no plain name, or another kind of file.
    """
    if output is not None and (campaign or output.suffix != ".csv"):
        raise InputError(
            "where to write",
            got=f"{output}" + (f" and campaign {campaign}" if campaign else ""),
            expected="a campaign, or a file that ends in .csv",
            where="the command line",
            do="name one of them",
        )
    return campaign_path(campaign) if campaign else output


def campaign_path(campaign: str) -> Path:
    """The table of runs of a campaign, `data/measured/CAMPAIGN/runs.csv`, whether there or not."""
    if not re.fullmatch(r"[\w-][\w.-]*", campaign, re.ASCII):
        raise InputError(
            "campaign name",
            got=repr(campaign),
            expected="letters, digits, dots, dashes and underscores, no dot first",
            where="the name of a folder under data/measured",
            do="choose another",
        )
    return data_dir("measured") / campaign / "runs.csv"


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


def number_replicates(runs: Iterable[Run], *, after: Iterable[Run] = ()) -> list[Run]:
    """The runs with `replicate` counted within each cell by start time, and `run_id` made of it.

    Counting goes on from the runs `after`, which keep their names. Cells that differ in what a name
    leaves out (dataset, prompts, burstiness, limit) share one count of names: each name is unique.
    """
    replicates: dict[tuple[object, ...], int] = {}
    names: dict[str, int] = {}
    for run in after:
        stem, _, number = run.run_id.rpartition("/r")
        if number.isdecimal():
            names[stem] = max(names.get(stem, 0), int(number))
        replicates[_cell(run)] = max(replicates.get(_cell(run), 0), run.replicate)
    numbered = {}
    for position, run in sorted(enumerate(runs), key=lambda pair: (pair[1].started, pair[0])):
        cell, stem = _cell(run), _stem(run)
        replicates[cell] = replicates.get(cell, 0) + 1
        names[stem] = names.get(stem, 0) + 1
        name = f"{stem}/r{names[stem]}"
        numbered[position] = replace(run, replicate=replicates[cell], run_id=name)
    return [numbered[position] for position in range(len(numbered))]


def check_run(run: Run, *, where: object = None) -> Run:
    """The run itself when it agrees with itself; InputError says what contradicts what.

    `where` is what the error names as the place, by default the run's source file.
    """
    latencies = (_latency_rules(run, name, getattr(run, name)) for name in LATENCIES)
    for holds, what, got, expected in chain(_count_rules(run), _throughput_rules(run), *latencies):
        if not holds:
            raise InputError(
                what,
                got=got,
                expected=expected,
                where=where or run.source_file,
                do="correct or remove that file",
            )
    return run


def identity(run: Run) -> tuple[object, ...]:
    """What makes two runs one run read twice: cell, start and duration, to the last digit."""
    return (*_cell(run), run.started, run.duration_s)


def find_duplicate(runs: Iterable[Run]) -> tuple[Run, Run] | None:
    """The first two runs of the same `identity`; None where each is another run."""
    seen: dict[tuple[object, ...], Run] = {}
    for run in runs:
        if identity(run) in seen:
            return seen[identity(run)], run
        seen[identity(run)] = run
    return None


def _cell(run: Run) -> tuple[object, ...]:
    return tuple(getattr(run, name) for name in CELL)


def _stem(run: Run) -> str:
    """A run's name without its number, such as `phi-4/1xh100-pcie/16qps`."""
    rate = f"{run.rate_requests_per_s:g}qps"
    return f"{short_name(run.model)}/{run.gpu_count}x{run.gpu}/{rate}"


def _run_of(row: dict[str, Any]) -> Run:
    for latency in LATENCIES:
        row[latency] = Latency(*(row.pop(f"{latency}_{name}_s") for name in STATISTICS))
    return Run(**row)


Rule = tuple[bool, str, object, str]  # whether it holds; what, got and expected if it does not


def _count_rules(run: Run) -> Iterator[Rule]:
    duration = run.duration_s
    yield 0 < duration < math.inf, "duration", duration, "finite seconds above 0"
    yield run.prompts >= 1, "prompts", run.prompts, "at least 1"
    yield run.completed >= 1, "completed requests", run.completed, "at least 1"
    sent = f"at most the {run.prompts} sent"
    yield run.completed <= run.prompts, "completed requests", run.completed, sent
    rate = run.rate_requests_per_s
    yield rate > 0, "request rate", rate, "requests per s above 0, or inf"
    yield 0 < run.burstiness < math.inf, "burstiness", run.burstiness, "a finite number above 0"
    yield run.max_concurrency >= 1, "concurrency limit", run.max_concurrency, "1 or more, or inf"
    yield run.gpu_count >= 1, "GPU count", run.gpu_count, "at least 1"
    yield run.input_tokens >= 0, "input tokens", run.input_tokens, "0 or more"
    yield run.output_tokens >= 0, "output tokens", run.output_tokens, "0 or more"


def _throughput_rules(run: Run) -> Iterator[Rule]:
    total = run.input_tokens + run.output_tokens
    for what, got, count in (
        ("request throughput", run.throughput_requests_per_s, run.completed),
        ("output throughput", run.output_throughput_tokens_per_s, run.output_tokens),
        ("total throughput", run.throughput_tokens_per_s, total),
    ):
        agrees = math.isclose(got, count / run.duration_s, rel_tol=THROUGHPUT_TOLERANCE_FRAC)
        expected = f"{count / run.duration_s:g}, its count over {run.duration_s:g} s"
        yield agrees, what, f"{got:g}", expected
    goodput = run.goodput_requests_per_s
    if not math.isnan(goodput):
        highest = run.throughput_requests_per_s
        within = 0 <= goodput <= highest * (1 + THROUGHPUT_TOLERANCE_FRAC)
        yield within, "goodput", f"{goodput:g}", f"between 0 and the throughput {highest:g}"


def _latency_rules(run: Run, name: str, latency: Latency) -> Iterator[Rule]:
    known = {key: value for key, value in asdict(latency).items() if not math.isnan(value)}
    for key, value in known.items():
        within = 0 <= value <= run.duration_s * (1 + THROUGHPUT_TOLERANCE_FRAC)
        yield within, f"{name} {key}", f"{value:g}", f"0 s to the run's {run.duration_s:g} s"
    percentiles = [key for key in known if key.startswith("p")]
    bounds = [(low, high, 1.0) for low, high in pairwise(percentiles)]
    bounds += [("mean_s", "p100_s", 1.0), ("std_s", "p100_s", 0.5)]  # values lie in 0..p100
    bounds += [("p50_s", "mean_s", 2.0)]  # half of the values are at least the median
    for low, high, factor in bounds:
        if low in known and high in known:
            fits = known[low] <= known[high] * factor * (1 + FLOAT_SLACK_FRAC)
            got = f"{low} {known[low]:g} with {high} {known[high]:g}"
            yield fits, f"{name} out of order", got, f"{low} at most {factor:g} times {high}"


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
