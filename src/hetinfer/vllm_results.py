"""vLLM's result files of every generation as runs; with `vllm_detail`, all that knows their fields.

Read are the files that `benchmark_serving.py` (vLLM 0.4 on) and `vllm bench serve` save: one JSON
record, records one after the other, or one a line; with or without the requests in detail
(`--save-detailed`). Milliseconds become seconds here.
"""

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import pandas as pd

from hetinfer.errors import InputError
from hetinfer.hardware import device_name, load_gpus, short_name
from hetinfer.records import Record, as_whole, bad_field, has, load_records, number, text, whole
from hetinfer.runs import (
    CONFIGURATION,
    Run,
    check_run,
    frame,
    identity,
    number_replicates,
)
from hetinfer.values import number_text
from hetinfer.vllm_detail import LISTS, detail_of, latency_of

SUFFIXES = (".json", ".jsonl")
NEEDED = ["date", "model_id", "num_prompts", "request_rate", "duration", "completed"]
NEEDED += ["total_input_tokens", "total_output_tokens"]
OWN_CLIENT = re.compile(r"(vllm|openai)(-.*)?")  # backends that are protocols of vLLM's own server
STUDY_NAME = re.compile(r"vllm_\d+prompts[\d.]+qps_.+_(?P<dataset>[^_]+)_\d+x[^_]+\.jsonl?")

T = TypeVar("T")


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
        device_name(stated.gpu)
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


def describe(result: Import) -> str:
    """Lines that say how many runs were read from how many files, and of what."""
    runs = frame(result.runs)
    configurations = runs[CONFIGURATION].drop_duplicates()
    models = sorted(map(short_name, runs["model"].unique()))
    gpus = sorted(set(zip(configurations["gpu"], configurations["gpu_count"], strict=True)))
    rates = [f"{rate:g}" for rate in sorted(runs["rate_requests_per_s"].unique())]
    return "\n".join(
        [
            f"runs: {number_text(len(runs))}, from {number_text(result.files)} files",
            f"models: {number_text(len(models))} ({', '.join(models)})",
            f"configurations: {number_text(len(configurations))}, on "
            + ", ".join(f"{count}x {gpu}" for gpu, count in gpus),
            f"offered rates: {', '.join(rates)} requests per s",
        ]
    )


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
        ttft=latency_of(record, "ttft", detail),
        tpot=latency_of(record, "tpot", detail),
        itl=latency_of(record, "itl", detail),
        source_file=source_file,
        variant=text(record, "variant"),
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
        return device_name(name)
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


def _no_result(record: Record, got: str) -> InputError:
    return bad_field(
        record,
        "no result of a serving benchmark",
        got,
        "what vllm bench serve or benchmark_serving.py saves of a run that generates text",
        "remove that file, or skip it with --skip-bad",
    )
