"""Measured runs with every request in detail, as the simulator takes them.

A campaign's files give the requests (lengths, when each was sent, which texts were the same), the
engine's settings, and the order of the runs on one server.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from hetinfer.errors import InputError
from hetinfer.records import Record, bad_field, load_records, whole
from hetinfer.runs import Run, frame
from hetinfer.simulation.engine import Engine, FrontEnd
from hetinfer.simulation.replay import RUN_SPACING_S, STATISTICS, TEST_LEAD_S, Replay
from hetinfer.simulation.step_time import StepTime
from hetinfer.vllm_detail import detail_of
from hetinfer.vllm_results import load_requests, load_results
from hetinfer.workload import Floats, Requests


@dataclass(frozen=True)
class Settings:
    """What a server said of its engine: limits in tokens and sequences, and whether it caches."""

    kv_tokens: int
    max_sequences: int
    max_batched_tokens: int
    prefix_caching: bool
    block_tokens: int


@dataclass(frozen=True)
class MeasuredRun:
    """One run: its summary, its requests by time of sending, and where it stood in its campaign.

    `token_s` has the arrival of each request's messages, nearly always one a token, in seconds
    since the first start. `replicate` names the server together with the run's variant, `position`
    counts the runs on it from 0. Runs of one server and `seed` send the same texts, unless
    `fresh_prompts`.
    """

    run: Run
    requests: pd.DataFrame
    token_s: tuple[Floats, ...]
    settings: Settings
    replicate: int
    position: int
    seed: int
    fresh_prompts: bool


def load_measured_runs(folder: Path) -> list[MeasuredRun]:
    """Every run of a campaign's folder, server by server, in the order in which they were made.

    InputError for a file without its requests in detail, a failed request, or no word on the
    engine.
    """
    runs = [_measured(run, folder / run.source_file) for run in load_results([folder]).runs]
    return sorted(runs, key=lambda m: (*_server(m), m.position))


def engine_of(settings: Settings, step_time: StepTime, front_end: FrontEnd) -> Engine:
    """The engine that a server's settings and a step's time make."""
    return Engine(
        settings.kv_tokens,
        settings.max_sequences,
        settings.max_batched_tokens,
        step_time,
        front_end,
        settings.prefix_caching,
        settings.block_tokens,
    )


def measured_replay(runs: Sequence[MeasuredRun]) -> Replay:
    """Runs of one kind of engine as one row of requests, each sent when its client sent it.

    Servers follow each other on one simulated engine: they share no text, and what an earlier one
    left in the cache is reused first, so that each finds what a new one would. InputError for no
    run, other settings, or runs of several lengths.
    """
    kinds = {(run.settings, len(run.requests)) for run in runs}
    if len(kinds) != 1:
        raise InputError(
            "runs do not make one replay",
            got=f"{len(kinds)} kinds of engine settings and request counts",
            expected="runs of one",
            where="measured_replay",
            do="replay each kind by itself",
        )
    n = len(runs[0].requests)
    leads_s = [_lead_s(run) for run in runs]
    starts_s = [RUN_SPACING_S * place + TEST_LEAD_S for place in range(len(runs))]
    sent = pd.concat([run.requests for run in runs])
    sent_s = [s + run.requests["start_s"] for s, run in zip(starts_s, runs, strict=True)]
    requests = Requests(
        np.concatenate(sent_s),
        sent["input_tokens"].to_numpy(np.int64),
        sent["output_tokens"].to_numpy(np.int64),
        pd.factorize(np.array([text for run in runs for text in text_names(run)]))[0],
    )
    return Replay(
        requests,
        n,
        tuple(n * place for place in range(len(runs))),
        tuple(start - lead for start, lead in zip(starts_s, leads_s, strict=True)),
        tuple(
            float(run.requests["start_s"].iloc[-1]) + lead
            for run, lead in zip(runs, leads_s, strict=True)
        ),
    )


def measured_statistics(runs: Sequence[MeasuredRun]) -> Floats:
    """`STATISTICS` as each run's client reported them; shape (n_runs, 15)."""
    statistics: Floats = frame([run.run for run in runs])[list(STATISTICS)].to_numpy(float)
    return statistics


def _measured(run: Run, path: Path) -> MeasuredRun:
    record = next(iter(load_records(path)))
    listed = load_requests(path)
    requests = listed.sort_values("start_s", kind="stable")
    if run.completed < run.prompts or requests["start_s"].isna().any():
        raise InputError(
            "run not whole",
            got=f"{run.completed} of {run.prompts} requests completed",
            expected="all, each with its start",
            where=path,
            do="measure it again",
        )
    said = _block(record, "measurement")
    token_s = _token_s(record, listed)
    return MeasuredRun(
        run,
        requests,
        tuple(token_s[request] for request in requests["request"]),
        _settings(_block(said, "engine")),
        whole(said, "replicate"),
        whole(said, "position"),
        whole(said, "seed"),
        _flag(said, "fresh_prompts"),
    )


def _token_s(record: Record, requests: pd.DataFrame) -> list[Floats]:
    """When each request's messages arrived, in the order of the file, in seconds."""
    detail = detail_of(record)
    if detail is None or not detail.itl_s.size:
        do = "measure it with --save-detailed"
        raise bad_field(record, "gaps between tokens", "none", "those of each request", do)
    firsts_s = (requests["start_s"] + requests["ttft_s"]).to_numpy(float)
    gaps_s = np.split(detail.itl_s, np.cumsum(detail.gap_counts)[:-1])
    return [
        first_s + np.concatenate([[0.0], np.cumsum(gaps)])
        for first_s, gaps in zip(firsts_s, gaps_s, strict=True)
    ]


def _settings(said: Record) -> Settings:
    block_tokens = whole(said, "block_tokens")
    return Settings(
        block_tokens * whole(said, "kv_blocks"),
        whole(said, "max_seqs"),
        whole(said, "max_batched_tokens"),
        _flag(said, "prefix_caching"),
        block_tokens,
    )


def _block(record: Record, name: str) -> Record:
    fields = record.fields.get(name)
    if not isinstance(fields, dict):
        do = "run it with hetinfer measure"
        raise bad_field(record, name, "none", "what hetinfer measure notes of a run", do)
    return Record(fields, record.path, f"{record.where}, {name}")


def _flag(record: Record, name: str) -> bool:
    value = record.fields.get(name)
    if not isinstance(value, bool):
        raise bad_field(record, name, repr(value), "true or false")
    return value


def _server(measured: MeasuredRun) -> tuple[str, str, int, str, int]:
    run = measured.run
    return run.model, run.gpu, run.gpu_count, run.variant, measured.replicate


def text_names(measured: MeasuredRun) -> list[str]:
    """A name for each request's text, the same where the text is, by time of sending."""
    own = f"run {measured.position}" if measured.fresh_prompts else ""
    drawn = f"{_server(measured)} seed {measured.seed} {own}"
    return [f"{drawn} {request}" for request in measured.requests["request"]]


def _lead_s(measured: MeasuredRun) -> float:
    """What the client counts to a run's duration before its first request and after its last."""
    ends_s = measured.requests["start_s"] + measured.requests["e2el_s"]
    return max(0.0, measured.run.duration_s - float(ends_s.max()))
