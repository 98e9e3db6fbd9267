"""vLLM's result files of every generation as runs; with `vllm_detail`, all that knows their fields.

Read are the files that `benchmark_serving.py` (vLLM 0.4 on) and `vllm bench serve` save: one JSON
record, records one after the other, or one a line; with or without the requests in detail
(`--save-detailed`). Milliseconds become seconds here.
"""

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from hetinfer.errors import InputError
from hetinfer.hardware import find_gpu, load_gpus
from hetinfer.records import Record, as_whole, bad_field, has, load_records, number, text, whole
from hetinfer.runs import (
    STATISTICS,
    Latency,
    Run,
    check_run,
    identity,
    number_replicates,
    percentiles_s,
)
from hetinfer.vllm_detail import LISTS, Detail, detail_of

SUFFIXES = (".json", ".jsonl")
NEEDED = ["date", "model_id", "num_prompts", "request_rate", "duration", "completed"]
NEEDED += ["total_input_tokens", "total_output_tokens"]
OWN_CLIENT = re.compile(r"(vllm|openai)(-.*)?")  # backends that are protocols of vLLM's own server
STUDY_NAME = re.compile(r"vllm_\d+prompts[\d.]+qps_.+_(?P<dataset>[^_]+)_\d+x[^_]+\.jsonl?")
MEAN_TOLERANCE_FRAC = 1e-3  # a mean that was rounded still agrees with that of its requests
PERCENTILES = [name for name in STATISTICS if name.startswith("p")]

T = TypeVar("T")
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Stated:
    """What the user says of runs whose files do not; empty or None where nothing is said."""

    gpu: str = ""
    gpu_count: int | None = None
    dataset: str = ""
    engine_version: str = ""


@dataclass(frozen=True)
class Import:
    """Runs read from result files, how many files gave them, and the files passed over and why."""

    runs: tuple[Run, ...]
    files: int
    skipped: tuple[InputError, ...]


NOTHING_STATED = Stated()


def load_results(
    paths: Sequence[Path],
    stated: Stated = NOTHING_STATED,
    *,
    evidence: str = "measured",
    skip_bad: bool = False,
) -> Import:
    """The runs of result files, and of all `*.json` and `*.jsonl` below folders, sorted by name.

    Raises InputError for the first file that cannot be read, is no result, contradicts itself or
    `stated`, or holds a run read before; with `skip_bad` such files are passed over and listed.
    """
    if stated.gpu:
        find_gpu(stated.gpu)
    files = [found for path in paths for found in _result_files(path)]
    runs: list[Run] = []
    skipped: list[InputError] = []
    seen: dict[tuple[object, ...], str] = {}
    for path, name in files:
        try:
            new = {
                record.where: _run(_result(record), stated, evidence=evidence, source_file=name)
                for record in load_records(path)
            }
            _refuse_duplicates(new, seen)
        except InputError as error:
            if not skip_bad:
                raise
            skipped.append(error)
        else:
            runs += new.values()
    if not runs:
        raise _none_left(skipped)
    return Import(tuple(number_replicates(runs)), len(files) - len(skipped), tuple(skipped))


def load_requests(path: Path, *, record: int = 1) -> pd.DataFrame:
    """The requests in detail of one record (counted from 1) of a result file, one row each.

    Columns: request, input_tokens, output_tokens, ttft_s, tpot_s, e2el_s, start_s (since the first
    start), error. E2EL is TTFT plus the gaps between tokens, TPOT = (E2EL - TTFT) / (O - 1) with O
    output tokens. NaN where a request failed or the file does not say; InputError without detail.
    """
    records = list(load_records(path))
    if not 1 <= record <= len(records):
        raise InputError(
            "no such record",
            got=record,
            expected=f"1 to {len(records)}",
            where=path,
            do="name another",
        )
    detail = detail_of(_result(records[record - 1]))
    if detail is None:
        raise InputError(
            "no requests in detail",
            got="a summary alone",
            expected=f"the lists {', '.join(LISTS)}",
            where=path,
            do="run the benchmark again with --save-detailed",
        )
    return detail.requests


def _result_files(path: Path) -> list[tuple[Path, str]]:
    """The file itself or the folder's result files, each with its name within the folder."""
    if path.is_file():
        return [(path, path.name)]
    if not path.is_dir():
        raise InputError(
            "nothing to read",
            got="no such file or folder",
            expected="a result file or a folder of them",
            where=path,
            do="check the path",
        )
    names = [
        (Path(folder) / name).relative_to(path).as_posix()
        for folder, _, listed in os.walk(path, onerror=_refuse)
        for name in listed
        if name.endswith(SUFFIXES)
    ]
    if not names:
        raise InputError(
            "empty folder",
            got="no file",
            expected=f"files that end in {' or '.join(SUFFIXES)}",
            where=path,
            do="check the path",
        )
    return [(path / name, name) for name in sorted(names)]


def _refuse(error: OSError) -> None:
    raise error


def _none_left(skipped: Sequence[InputError]) -> InputError:
    return InputError(
        "no run to read",
        got=f"{len(skipped)} bad files",
        expected="at least one good one",
        where="what was given",
        do=f"the first of them: {skipped[0]}",
    )


def _result(record: Record) -> Record:
    """The record itself when it is a result of a run that generated text at one rate."""
    missing = [name for name in NEEDED if record.fields.get(name) in (None, "")]
    if missing:
        raise _no_result(record, f"no {', '.join(missing)}")
    if has(record, "ramp_up_strategy"):
        raise _no_result(record, "a run that ramps its rate up")
    return record


def _run(record: Record, stated: Stated, *, evidence: str, source_file: str) -> Run:
    detail = detail_of(record)
    itl_s = np.empty(0) if detail is None else detail.itl_s
    duration_s = number(record, "duration")
    completed = whole(record, "completed")
    tokens = [whole(record, f"total_{side}_tokens") for side in ("input", "output")]
    backend = text(record, "backend") or text(record, "endpoint_type") or "vllm"
    output_per_s = _rate(number(record, "output_throughput"), tokens[1], duration_s)
    total_per_s = number(record, "input_throughput") + output_per_s  # what vLLM 0.4 and 0.5 say
    if has(record, "total_token_throughput"):
        total_per_s = number(record, "total_token_throughput")
    run = Run(
        run_id="",
        evidence=evidence,
        started=_started(record),
        engine="vllm" if OWN_CLIENT.fullmatch(backend) else backend,
        engine_version=_engine_version(record, stated),
        model=text(record, "model_id"),
        gpu=_gpu(record, stated),
        gpu_count=_gpu_count(record, stated),
        dataset=_dataset(record, stated),
        prompts=whole(record, "num_prompts"),
        rate_requests_per_s=number(record, "request_rate"),
        burstiness=number(record, "burstiness", otherwise=1.0),
        max_concurrency=number(record, "max_concurrency", otherwise=math.inf),
        replicate=0,
        duration_s=duration_s,
        completed=completed,
        input_tokens=tokens[0],
        output_tokens=tokens[1],
        throughput_requests_per_s=_rate(
            number(record, "request_throughput"), completed, duration_s
        ),
        goodput_requests_per_s=number(record, "request_goodput", "request_goodput:"),
        output_throughput_tokens_per_s=output_per_s,
        throughput_tokens_per_s=_rate(total_per_s, sum(tokens), duration_s),
        ttft=_latency(record, "ttft", _column_s(detail, "ttft_s")),
        tpot=_latency(record, "tpot", _column_s(detail, "tpot_s")),
        itl=_latency(record, "itl", itl_s),
        source_file=source_file,
    )
    return _check_failed(record, check_run(run, where=record.where))


def _refuse_duplicates(new: Mapping[str, Run], seen: dict[tuple[object, ...], str]) -> None:
    """Note where each new run was read; InputError for one that was read before."""
    noted: dict[tuple[object, ...], str] = {}
    for where, run in new.items():
        earlier = seen.get(identity(run)) or noted.get(identity(run))
        if earlier:
            raise InputError(
                "duplicate run",
                got=f"{run.model} started {run.started} twice",
                expected="each run once",
                where=f"{earlier} and {where}",
                do="remove one of them",
            )
        noted[identity(run)] = where
    seen |= noted


def _latency(record: Record, name: str, values_s: Floats) -> Latency:
    """The file's own summary of a latency, and what it lacks from that of its requests."""
    stated = Latency(
        **{f"{s}_s": number(record, f"{s}_{name}_ms") / 1000 for s in STATISTICS}
        | {"p50_s": _median_ms(record, name) / 1000}
    )
    known = [value for value in asdict(stated).values() if not math.isnan(value)]
    if known and not any(known):
        stated = Latency()  # vLLM writes zeros where nothing was measured
    values_s = values_s[~np.isnan(values_s)]
    if not values_s.any():
        return stated
    if name != "tpot":  # the first vLLM counted a stream's last message into it
        _check_mean(record, name, stated.mean_s, float(values_s.mean()))
    return _filled(stated, percentiles_s(values_s))


def _median_ms(record: Record, name: str) -> float:
    median, p50 = number(record, f"median_{name}_ms"), number(record, f"p50_{name}_ms")
    if math.isnan(median) or math.isnan(p50):
        return p50 if math.isnan(median) else median
    if not math.isclose(median, p50, rel_tol=MEAN_TOLERANCE_FRAC):
        raise bad_field(
            record, f"median_{name}_ms", f"{median:g}", f"p50_{name}_ms, which is {p50:g}"
        )
    return p50


def _check_mean(record: Record, name: str, stated_s: float, computed_s: float) -> None:
    agrees = math.isclose(stated_s, computed_s, rel_tol=MEAN_TOLERANCE_FRAC)
    if not (agrees or math.isnan(stated_s)):
        expected = f"{computed_s * 1000:g}, the mean of its requests in detail"
        raise bad_field(record, f"mean_{name}_ms", f"{stated_s * 1000:g}", expected)


def _filled(stated: Latency, computed: Latency) -> Latency:
    """The stated summary, its gaps filled; a filled percentile stays between stated neighbours.

    It could leave them by the last message of a stream, which old files count into TPOT.
    """
    known = {name: value for name, value in asdict(stated).items() if not math.isnan(value)}
    filled = asdict(computed) | known
    order = [f"{name}_s" for name in PERCENTILES]
    floor = np.maximum.accumulate([known.get(name, 0.0) for name in order])
    floor[-1] = max(floor[-1], known.get("mean_s", 0.0))
    ceiling = np.minimum.accumulate([known.get(name, math.inf) for name in order[::-1]])[::-1]
    clipped = np.clip([filled[name] for name in order], floor, ceiling)
    return Latency(**filled | dict(zip(order, map(float, clipped), strict=True)) | known)


def _started(record: Record) -> str:
    date = text(record, "date")
    try:
        return datetime.strptime(date, "%Y%m%d-%H%M%S").isoformat()
    except ValueError as error:
        raise bad_field(record, "date", repr(date), "such as 20250610-151148") from error


def _gpu(record: Record, stated: Stated) -> str:
    said = {name: text(record, name) for name in ("gpu_name", "gpu")} | {"--gpu": stated.gpu}
    gpu = _agreed(record, "GPU", said, lambda name: _known_gpu(record, name))
    if gpu is None:
        do = "name it with --gpu, or run the benchmark with --metadata gpu=NAME"
        raise bad_field(record, "GPU", "none", f"one of {', '.join(load_gpus())}", do)
    return gpu


def _known_gpu(record: Record, name: str) -> str:
    try:
        return find_gpu(name).gpu
    except InputError as error:
        known = f"one of {', '.join(load_gpus())}"
        do = "add a row for it to data/reference/gpus.csv, with its names in the column aliases"
        raise bad_field(record, error.what, repr(name), known, do) from error


def _gpu_count(record: Record, stated: Stated) -> int:
    option = "" if stated.gpu_count is None else str(stated.gpu_count)
    said = {"gpu_count": text(record, "gpu_count"), "--gpu-count": option}
    count = _agreed(record, "GPU count", said, lambda text: as_whole(record, "GPU count", text))
    if count is None:
        do = "say it with --gpu-count, or run the benchmark with --metadata gpu_count=NUMBER"
        raise bad_field(record, "GPU count", "none", "how many served the model", do)
    return count


def _dataset(record: Record, stated: Stated) -> str:
    named = STUDY_NAME.fullmatch(record.path.name)
    said = {name: text(record, name) for name in ("dataset", "dataset_name")}
    said |= {"its name": named["dataset"] if named else "", "--dataset": stated.dataset}
    return _agreed(record, "dataset", said, str) or ""


def _engine_version(record: Record, stated: Stated) -> str:
    said = {name: text(record, name) for name in ("engine_version", "vllm_version")}
    said |= {"--engine-version": stated.engine_version}
    return _agreed(record, "engine version", said, str) or ""


def _agreed(
    record: Record, what: str, said: Mapping[str, str], read: Callable[[str], T]
) -> T | None:
    """The one value that all who say anything agree on; None where nobody does."""
    values = {who: read(text) for who, text in said.items() if text}
    if len(set(values.values())) > 1:
        got = ", ".join(f"{value} ({who})" for who, value in values.items())
        raise bad_field(record, f"{what} said in two ways", got, "one value", "correct one of them")
    return next(iter(values.values()), None)


def _rate(stated_per_s: float, count: int, duration_s: float) -> float:
    """What the file says, or else the count over the duration."""
    return count / duration_s if math.isnan(stated_per_s) and duration_s > 0 else stated_per_s


def _check_failed(record: Record, run: Run) -> Run:
    failed = number(record, "failed", otherwise=0.0)
    if not 0 <= failed <= run.prompts - run.completed:
        expected = f"at most {run.prompts - run.completed}, those sent and not completed"
        raise bad_field(record, "failed requests", f"{failed:g}", expected)
    return run


def _column_s(detail: Detail | None, name: str) -> Floats:
    return np.empty(0) if detail is None else detail.requests[name].to_numpy(np.float64)


def _no_result(record: Record, got: str) -> InputError:
    return bad_field(
        record,
        "no result of a serving benchmark",
        got,
        "what vllm bench serve or benchmark_serving.py saves of a run that generates text",
        "remove that file, or skip it with --skip-bad",
    )
