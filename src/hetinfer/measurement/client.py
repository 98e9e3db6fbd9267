"""vLLM's own benchmark client, unmodified: its command line, its run, and how well it kept time."""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hetinfer.errors import InputError
from hetinfer.measurement.processes import ProgramError, kept, log_end, wait
from hetinfer.measurement.server import Server

# the package is called vllm whatever its distribution, but the `vllm` script is not always there
CLIENT = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
PERCENTILES = "50,90,95,99,100"
POLL_S = 0.5
LEAVE_S = 30.0  # a client whose server is gone has this long to write down its failures
DATASETS = ("random", "sharegpt", "custom")

Numbers = npt.NDArray[np.float64]


class ClientError(ProgramError):
    """A client left no result."""


@dataclass(frozen=True)
class Dataset:
    """Where prompts come from: `random` tokens of given counts, or a `sharegpt` or `custom` file.

    `output_tokens` 0 leaves the output's length to the file.
    """

    name: str
    path: str = ""
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True)
class Load:
    """One run's load: `prompts` requests at one offered rate; `seed` fixes arrivals and prompts."""

    model: str
    tokenizer: str
    dataset: Dataset
    prompts: int
    rate_requests_per_s: float
    seed: int
    burstiness: float = 1.0
    ttft_target_s: float = 2.0
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pacing:
    """How well a client kept to its schedule; lags in seconds behind the intended send time.

    `last_lag_frac` is the last request's lag over its scheduled time.
    """

    offered_requests_per_s: float
    achieved_requests_per_s: float
    lag_p50_s: float
    lag_p99_s: float
    lag_max_s: float
    last_lag_frac: float


def client_command(interpreter: Path, base_url: str, load: Load, result: Path) -> list[str]:
    """The command line of vLLM's `bench serve` for a load, with per-request detail in `result`."""
    return [
        *(str(interpreter), "-c", CLIENT, "--backend", "vllm", "--base-url", base_url),
        *("--model", load.model, "--tokenizer", load.tokenizer),
        *dataset_flags(load.dataset),
        *("--num-prompts", str(load.prompts)),
        *("--request-rate", f"{load.rate_requests_per_s:g}"),
        *("--burstiness", f"{load.burstiness:g}", "--seed", str(load.seed)),
        *("--temperature", "0", "--goodput", f"ttft:{load.ttft_target_s * 1000:g}"),
        *("--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", PERCENTILES),
        *("--save-result", "--save-detailed", "--disable-tqdm"),
        *("--result-dir", str(result.parent), "--result-filename", result.name),
        *load.flags,
    ]


def dataset_flags(dataset: Dataset) -> list[str]:
    """The client's flags for a dataset; InputError for an unknown one or a missing file."""
    if dataset.name == "random":
        lengths = (dataset.input_tokens, dataset.output_tokens)
        flags = ("--random-input-len", "--random-output-len")
        return ["--dataset-name", "random", *_pairs(flags, lengths)]
    if dataset.name not in DATASETS:
        raise InputError(
            "unknown dataset",
            got=repr(dataset.name),
            expected=f"one of {', '.join(DATASETS)}",
            where="the campaign's dataset",
            do="name one of these",
        )
    if not Path(dataset.path).is_file():
        raise InputError(
            "dataset missing",
            got="no file",
            expected=f"the prompts of {dataset.name}",
            where=dataset.path or "the campaign's dataset",
            do="download it and give its path in the campaign's dataset",
        )
    flags_of_file = ["--dataset-name", dataset.name, "--dataset-path", dataset.path]
    if dataset.name == "custom":
        flags_of_file += ["--skip-chat-template", "--custom-output-len", "-1"]
    return flags_of_file


def run_client(
    interpreter: Path,
    server: Server,
    load: Load,
    *,
    result: Path,
    log: Path,
    timeout_s: float,
) -> list[str]:
    """Send a load to a server and leave vLLM's result file; returns the command line.

    The key of an endpoint that wants one is the server's `key`, or is read by the client from
    `OPENAI_API_KEY`. Raises ClientError if the client fails, runs out of time, or leaves no file.
    """
    command = client_command(interpreter, server.base_url, load, result)
    result.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + timeout_s
    env = {"OPENAI_API_KEY": server.key} if server.key else None
    with kept(command, log=log, env=env) as program:
        while (code := wait(program, POLL_S)) is None:
            if server.has_ended():
                deadline = min(deadline, time.monotonic() + LEAVE_S)
            if time.monotonic() > deadline:
                raise ClientError("client-timeout", f"no end in {timeout_s:g} s", log_end(log))
    if code or not result.is_file():
        raise ClientError("client-failed", f"exit code {code}", log_end(log))
    return command


def schedule_s(
    prompts: int, rate_requests_per_s: float, seed: int, burstiness: float = 1.0
) -> Numbers:
    """Intended send times (n,) after the load's start: cumulated gamma gaps, scaled to end at n/q.

    Gaps: Gamma(b, 1/(q b)) from numpy's legacy generator with the client's seed, as vLLM since 0.9
    draws and scales them (0.8.5 did not scale). An infinite rate sends all at once; an infinite
    burstiness sends evenly.
    """
    if np.isinf(rate_requests_per_s):
        return np.zeros(prompts)
    if np.isinf(burstiness):
        return np.arange(1, prompts + 1) / rate_requests_per_s
    scale_s = 1.0 / (rate_requests_per_s * burstiness)
    gaps_s = np.random.RandomState(seed).gamma(burstiness, scale_s, prompts)
    ends_s = np.cumsum(gaps_s)
    return np.asarray(ends_s * (prompts / rate_requests_per_s / ends_s[-1]))


def lags_s(start_s: Numbers, intended_s: Numbers) -> Numbers:
    """How late each request left, in seconds, (n,): s_i - d_i, less its smallest value.

    The client does not say when its schedule began; the request that lags least fixes it.
    """
    behind_s = start_s - intended_s
    return np.asarray(behind_s - behind_s.min())


def pacing(start_s: Numbers, intended_s: Numbers) -> Pacing:
    """Offered against achieved rate and the lags, from send times and the schedule, both (n,).

    Rates are (n - 1) over the time from first to last; NaN for fewer than two requests.
    """
    lag_s = lags_s(start_s, intended_s)
    p50_s, p99_s = np.percentile(lag_s, [50, 99])
    last_s = float(intended_s.max())
    return Pacing(
        offered_requests_per_s=_rate(intended_s),
        achieved_requests_per_s=_rate(start_s),
        lag_p50_s=float(p50_s),
        lag_p99_s=float(p99_s),
        lag_max_s=float(lag_s.max()),
        last_lag_frac=float(lag_s[np.argmax(intended_s)] / last_s) if last_s else float("nan"),
    )


def _rate(times_s: Numbers) -> float:
    span_s = float(np.ptp(times_s))
    return (len(times_s) - 1) / span_s if span_s > 0 else float("nan")


def _pairs(flags: tuple[str, ...], values: tuple[int, ...]) -> list[str]:
    return [text for flag, value in zip(flags, values, strict=True) for text in (flag, str(value))]
