"""One series on one machine: a server, a client, a power log, and a record of each cell.

If the server is lost, the next one takes over where it stood.
"""

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hetinfer.hardware import CPU
from hetinfer.measurement import records
from hetinfer.measurement.campaign import Campaign, Cell, Series
from hetinfer.measurement.client import ClientError, Load, pacing, run_client, schedule_s
from hetinfer.measurement.dummy_model import is_dummy, write_dummy_model
from hetinfer.measurement.energy import mean_power_w, run_energy
from hetinfer.measurement.manifest import Manifest, take_manifest
from hetinfer.measurement.power import PowerLog, sampling, visible_gpus
from hetinfer.measurement.records import Record
from hetinfer.measurement.server import (
    Server,
    ServerError,
    ServerSpec,
    connect,
    counter,
    failure_of,
    is_lost,
    serving,
)
from hetinfer.paths import default_build_dir, root_dir

IDLE_S = 10.0  # how long idle power is measured before a server starts
ALLOWED_FAILURES_FRAC = 0.01  # a run of thousands is not void for one lost request
CLIENT_START_S = 300.0  # for a client to load its dataset, and for the last requests to end
SLOWEST_FRAC = 0.05  # of the offered rate: a server slower than that is given up
PREFIX_COUNTERS = {
    "prefix_cache_hit_tokens": "vllm:prefix_cache_hits_total",
    "prefix_cache_query_tokens": "vllm:prefix_cache_queries_total",
}

Result = dict[str, Any]  # what vLLM's client wrote, by its own field names


@dataclass(frozen=True)
class Setup:
    """Where and with what cells are run: the Python that has vLLM, or a running endpoint.

    `work_dir` gets logs and dummy models; port 0 means any free one.
    """

    interpreter: Path
    work_dir: Path
    base_url: str = ""
    port: int = 0
    idle_s: float = IDLE_S


@dataclass(frozen=True)
class _Bench:
    """What the cells of one server share."""

    campaign: Campaign
    setup: Setup
    server: Server
    manifest: Manifest
    idle_power_w: float | None


def default_setup(interpreter: Path | None = None, base_url: str = "", port: int = 0) -> Setup:
    """The setup of this clone: vLLM from `.venv-vllm`, logs and models in `build/measure`."""
    python = interpreter or root_dir() / ".venv-vllm" / "bin" / "python"
    return Setup(python, default_build_dir() / "measure", base_url, port)


def measure_series(campaign: Campaign, series: Series, setup: Setup) -> Iterator[Record]:
    """Run a series on a server of its own, or on the next if that is lost; a record a cell.

    A server that does not start fails every cell that is left.
    """
    python = None if setup.base_url else setup.interpreter
    manifest = take_manifest(python, campaign.sha256, campaign.dataset.path)
    idle_power_w = _idle_power_w(series, setup)
    left = list(series.cells)
    while left:
        try:
            with _served(campaign, left[0], setup) as server:
                bench = _Bench(campaign, setup, server, manifest, idle_power_w)
                for served_before, cell in enumerate(tuple(left)):
                    yield _measure(bench, cell, served_before)
                    left.remove(cell)
                    if is_lost(server):
                        break
        except ServerError as error:
            for cell in left:
                yield _failure(cell, error)
            return


@contextlib.contextmanager
def _served(campaign: Campaign, cell: Cell, setup: Setup) -> Iterator[Server]:
    """The server of a cell: one of its own, or the endpoint that the setup names."""
    if is_dummy(cell.model):
        write_dummy_model(cell.model, Path(_model_source(cell.model, setup)))
    if setup.base_url:
        yield connect(setup.base_url)
        return
    parallel = ("--tensor-parallel-size", str(cell.gpu_count)) if cell.gpu_count > 1 else ()
    spec = ServerSpec(
        interpreter=setup.interpreter,
        model=_model_source(cell.model, setup),
        served_name=cell.model,
        flags=(
            *("--dtype", campaign.dtype, *parallel),
            *(*campaign.server_flags, *cell.variant.server_flags),
        ),
        env=(("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), *campaign.server_env),
        port=setup.port,
    )
    with serving(spec, log=_file(setup, campaign, cell, "server.log")) as server:
        yield server


def _measure(bench: _Bench, cell: Cell, served_before: int) -> Record:
    """Load the server with one cell and make its record, of a run or of a failure."""
    try:
        if cell.position > 0 and served_before == 0 and not cell.variant.fresh_prompts:
            _replay(bench, cell)
        before = _prefix_counts(bench.server)
        with sampling(_gpus(cell)) as power:
            result, command = _load(bench, cell)
        after = _prefix_counts(bench.server)
        _check_failures(result)
    except ClientError as error:
        lost = bench.server.program if is_lost(bench.server) else None
        cause = failure_of(lost, "server-died") if lost else error
        return _failure(cell, cause)
    own = _own_fields(bench, cell, result, power) | {
        "served_before": served_before,
        **{name: after[name] - before[name] for name in before},
        "client_command": records.portable_command(command),
    }
    samples = pd.DataFrame([asdict(sample) for sample in power.samples])
    return records.run_record(
        cell.name, _labelled(bench, cell, result) | {records.OWN: own}, samples
    )


def _failure(cell: Cell, error: ServerError | ClientError) -> Record:
    return records.failure_record(cell.name, error.reason, error.detail, error.log_end)


def _load(bench: _Bench, cell: Cell, rate: float | None = None) -> tuple[Result, list[str]]:
    """vLLM's result of one load, at the cell's rate or another, and the client's command line."""
    target = _file(bench.setup, bench.campaign, cell, "result.json")
    target.unlink(missing_ok=True)
    load = Load(
        model=cell.model,
        tokenizer=_model_source(cell.model, bench.setup),
        dataset=bench.campaign.dataset,
        prompts=cell.prompts,
        rate_requests_per_s=cell.rate_requests_per_s if rate is None else rate,
        seed=cell.seed,
        burstiness=bench.campaign.burstiness,
        ttft_target_s=bench.campaign.ttft_targets_s[0],
        flags=bench.campaign.client_flags,
    )
    command = run_client(
        bench.setup.interpreter,
        bench.server,
        load,
        result=target,
        log=_file(bench.setup, bench.campaign, cell, "client.log"),
        timeout_s=CLIENT_START_S + cell.prompts / (SLOWEST_FRAC * cell.rate_requests_per_s),
    )
    result = json.loads(target.read_text())
    target.unlink()
    return result, command


def _replay(bench: _Bench, cell: Cell) -> None:
    """Bring a new server to where the lost one was: send the series' prompts once, unmeasured."""
    _load(bench, cell, float("inf"))


def _check_failures(result: Result) -> None:
    """ClientError if more requests failed than a run may lose."""
    failed, sent = int(result["failed"]), int(result["num_prompts"])
    if failed > ALLOWED_FAILURES_FRAC * sent:
        first = next((error for error in result["errors"] if error), "")
        detail = f"{failed} of {sent} requests failed"
        raise ClientError("requests-failed", detail, first)


def _own_fields(bench: _Bench, cell: Cell, result: Result, power: PowerLog) -> Result:
    starts_s = np.array(result["start_times"])
    intended_s = schedule_s(
        cell.prompts, cell.rate_requests_per_s, cell.seed, bench.campaign.burstiness
    )
    began_s = float((starts_s - intended_s).min())
    energy = run_energy(
        power,
        began_s,
        began_s + float(result["duration"]),
        tokens=int(result["total_input_tokens"]) + int(result["total_output_tokens"]),
        idle_power_w=bench.idle_power_w,
    )
    return {
        "cell": cell.name,
        "campaign": bench.campaign.name,
        "variant": cell.variant.name,
        "fresh_prompts": cell.variant.fresh_prompts,
        "replicate": cell.replicate,
        "position": cell.position,
        "seed": cell.seed,
        "engine": asdict(bench.server.engine),
        "pacing": asdict(pacing(starts_s, intended_s)),
        "energy": asdict(energy),
        "power_reasons": [f"{what}: {why}" for what, why in power.reasons.items()],
        "server_command": records.portable_command(bench.server.command),
        "manifest": asdict(bench.manifest),
    }


def _labelled(bench: _Bench, cell: Cell, result: Result) -> Result:
    """The client's result with what the reader of results wants to know beside it."""
    dataset = bench.campaign.dataset
    lengths = f"-{dataset.input_tokens}-{dataset.output_tokens}" if dataset.input_tokens else ""
    single = len(bench.campaign.variants) == 1
    return {
        **result,
        "tokenizer_id": cell.model,
        "gpu": cell.gpu,
        "gpu_count": cell.gpu_count,
        "dataset": f"{dataset.name}{lengths}",
        "engine_version": bench.server.engine.version or "",
        "variant": "" if single else cell.variant.name,
    }


def _idle_power_w(series: Series, setup: Setup) -> float | None:
    """Power of the series' GPUs before its server starts; None without GPUs or with an endpoint."""
    gpus = _gpus(series.cells[0])
    if setup.base_url or not gpus:
        return None
    with sampling(gpus) as log:
        if "gpu" not in log.reasons:
            time.sleep(setup.idle_s)
    return mean_power_w(log)


def _gpus(cell: Cell) -> tuple[int, ...]:
    return () if cell.gpu == CPU else visible_gpus(cell.gpu_count)


def _model_source(model: str, setup: Setup) -> str:
    """Where a model's configuration and tokenizer are: a folder for a dummy, else its own name."""
    folder = setup.work_dir / "models" / model.replace("/", "-")
    return str(folder) if is_dummy(model) else model


def _file(setup: Setup, campaign: Campaign, cell: Cell, kind: str) -> Path:
    return setup.work_dir / campaign.name / f"{cell.name}.{kind}"


def _prefix_counts(server: Server) -> dict[str, float]:
    return {name: counter(server.base_url, metric) for name, metric in PREFIX_COUNTERS.items()}
