"""A vLLM server as a process of its own: started, waited for, asked what it resolved to, ended."""

import contextlib
import json
import re
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hetinfer.errors import InputError
from hetinfer.measurement.processes import Kept, ProgramError, kept, log_end, wait

HOST = "127.0.0.1"
POLL_S = 0.1
START_TIMEOUT_S = 1800.0  # a 70B model from a cold disk takes a quarter of an hour
REQUEST_TIMEOUT_S = 10.0
# nothing is sent home or fetched behind the experiment's back; /server_info tells the configuration
ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_SERVER_DEV_MODE": "1"}
OUT_OF_MEMORY = (
    "out of memory",
    "No available memory for the cache blocks",
    "less than desired GPU memory",
    "not enough memory",
    "larger than the available KV cache memory",
    "Cannot allocate memory",
    "less than requested memory for kv",
)
CAUSE_LENGTH = 240  # characters of a cause that a failure's line shows


class ServerError(ProgramError):
    """A server did not start, or is gone."""


@dataclass(frozen=True)
class ServerSpec:
    """What to start: a model folder or hub name, the name it is served under, flags and variables.

    `interpreter` is the Python that has vLLM; port 0 means any free one.
    """

    interpreter: Path
    model: str
    served_name: str
    flags: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    port: int = 0


@dataclass(frozen=True)
class EngineConfiguration:
    """What the engine resolved its flags to; None where the server does not tell."""

    version: str | None = None
    kv_blocks: int | None = None
    block_tokens: int | None = None
    max_seqs: int | None = None
    max_batched_tokens: int | None = None
    prefix_caching: bool | None = None
    attention_backend: str | None = None
    dtype: str | None = None


@dataclass(frozen=True)
class Server:
    """A server that answers: where, how it is configured, how it was started, and its process.

    `program` is None for an endpoint that somebody else runs; `key` is what it wants from clients.
    """

    base_url: str
    engine: EngineConfiguration = EngineConfiguration()
    command: tuple[str, ...] = ()
    program: Kept | None = None
    key: str = field(default="", repr=False)

    def has_ended(self) -> bool:
        """Whether the server's process is gone; never true of somebody else's endpoint."""
        return self.program is not None and self.program.has_ended()


@contextlib.contextmanager
def serving(
    spec: ServerSpec, *, log: Path, start_timeout_s: float = START_TIMEOUT_S
) -> Iterator[Server]:
    """Run a vLLM server while the block lasts; the block begins when it answers.

    Raises InputError for an interpreter without vLLM, a missing model folder or a port in use, and
    ServerError when the server ends or stays silent instead of answering.
    """
    check_interpreter(spec.interpreter)
    check_model(spec.model)
    port = free_port(spec.port)
    command = server_command(spec, port)
    with kept(command, log=log, env={**ENVIRONMENT, **dict(spec.env)}) as program:
        base_url = f"http://{HOST}:{port}"
        await_health(base_url, program, start_timeout_s)
        yield Server(base_url, ask_configuration(base_url, log), tuple(command), program)


def connect(base_url: str) -> Server:
    """A server that somebody else runs; InputError if nothing answers there."""
    url = base_url.rstrip("/").removesuffix("/v1")
    if _get(f"{url}/v1/models", accept_errors=True) is None:
        raise InputError(
            "no endpoint",
            got="no answer",
            expected="an OpenAI-compatible server",
            where=base_url,
            do="start it, or correct --base-url",
        )
    return Server(url, ask_configuration(url, None))


def server_command(spec: ServerSpec, port: int) -> list[str]:
    """The command line of a server; the module form also serves where vLLM goes by another name."""
    return [
        str(spec.interpreter),
        *("-m", "vllm.entrypoints.openai.api_server"),
        *("--model", spec.model, "--served-model-name", spec.served_name),
        *("--host", HOST, "--port", str(port)),
        *spec.flags,
    ]


def check_interpreter(interpreter: Path) -> None:
    """InputError unless this Python is there and has vLLM; vLLM itself is not started."""
    folder = interpreter.parent.parent
    found = next(folder.glob("lib/python3*/site-packages/vllm/__init__.py"), None)
    if not interpreter.is_file() or found is None:
        raise InputError(
            "vLLM is not installed",
            got="no vllm package" if interpreter.is_file() else "no interpreter",
            expected="an environment with vLLM",
            where=interpreter,
            do="run make vllm-cpu or make vllm-gpu, or name another with --python",
        )


def check_model(model: str) -> None:
    """InputError for a path to a model folder that is not there; hub names pass."""
    looks_like_path = model.startswith((".", "/", "~"))
    if looks_like_path and not (Path(model).expanduser() / "config.json").is_file():
        raise InputError(
            "model folder missing",
            got="no config.json",
            expected="a folder with config.json, tokenizer and weights",
            where=model,
            do="correct the path in the campaign, or download the model",
        )


def free_port(port: int) -> int:
    """The port itself if it is free, any free one for 0; InputError for one in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise InputError(
                "port in use",
                got=error.strerror,
                expected="a free port",
                where=f"{HOST}:{port}",
                do="end what listens there, or leave the port out",
            ) from None
        return int(probe.getsockname()[1])


def await_health(base_url: str, program: Kept, timeout_s: float, *, path: str = "/health") -> None:
    """Return when `path` answers 200; ServerError if the process ends or time is up."""
    deadline = time.monotonic() + timeout_s
    while _get(f"{base_url}{path}") is None:
        if program.has_ended():
            raise failure_of(program, "server-died-at-start")
        if time.monotonic() > deadline:
            raise ServerError(
                "server-silent", f"no answer in {timeout_s:g} s", log_end(program.log)
            )
        time.sleep(POLL_S)


def is_lost(server: Server) -> bool:
    """Whether a server that was started here has ended, or answers no more."""
    if server.program is None:
        return False
    return server.has_ended() or _get(f"{server.base_url}/health") is None


def failure_of(program: Kept, reason: str) -> ServerError:
    """The failure of a program that has ended: out of memory if its log or signal says so."""
    code = wait(program, REQUEST_TIMEOUT_S)
    said = log_end(program.log, 400)
    killed = code == 128 + signal.SIGKILL
    if any(sign.lower() in said.lower() for sign in OUT_OF_MEMORY):
        reason = "out-of-memory"
    detail = "killed, as the kernel does when memory is short" if killed else f"exit code {code}"
    first = cause(said)
    return ServerError(reason, f"{detail}, {first}" if first else detail, log_end(program.log))


def cause(log: str) -> str:
    """The first error that a log names, such as `ValueError: ...`, which the others follow from."""
    errors = re.findall(r"^(?!.*WARNING).*?\b((?:\w+\.)*\w*Error: .+)$", log, re.MULTILINE)
    return str(errors[0])[:CAUSE_LENGTH] if errors else ""


def ask_configuration(base_url: str, log: Path | None) -> EngineConfiguration:
    """What the server tells of its configuration, over HTTP and in its log."""
    version = _json(_get(f"{base_url}/version")).get("version")
    cache = cache_labels(_get(f"{base_url}/metrics") or "")
    info = _json(_get(f"{base_url}/server_info?config_format=json")).get("vllm_config", {})
    scheduler, model = info.get("scheduler_config", {}), info.get("model_config", {})
    prefix_caching = cache.get("enable_prefix_caching")
    return EngineConfiguration(
        version=version,
        kv_blocks=_integer(cache.get("num_gpu_blocks")),
        block_tokens=_integer(cache.get("block_size")),
        max_seqs=scheduler.get("max_num_seqs"),
        max_batched_tokens=scheduler.get("max_num_batched_tokens"),
        prefix_caching=None if prefix_caching is None else prefix_caching == "True",
        attention_backend=attention_backend(log.read_text(errors="replace") if log else ""),
        dtype=str(model["dtype"]).removeprefix("torch.") if "dtype" in model else None,
    )


def cache_labels(metrics: str) -> dict[str, str]:
    """The labels of `vllm:cache_config_info` in a page of Prometheus metrics; empty without it."""
    line = re.search(r"^vllm:cache_config_info\{(.*)\} ", metrics, re.MULTILINE)
    return dict(re.findall(r'(\w+)="([^"]*)"', line.group(1))) if line else {}


def attention_backend(log: str) -> str | None:
    """The attention backend that a server's log names; None if it names none."""
    found = re.search(r"Using (\S+(?: Attention)?) (?:attention )?backend", log)
    return found.group(1) if found else None


def counter(base_url: str, name: str) -> float:
    """A counter of the server's metrics page, summed over its engines; NaN if it has none."""
    page = _get(f"{base_url}/metrics") or ""
    values = re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", page, re.MULTILINE)
    return sum(map(float, values)) if values else float("nan")


def _get(url: str, *, accept_errors: bool = False) -> str | None:
    """The body of an answer with status 200, or of any answer if errors are accepted; else None."""
    try:
        with urllib.request.urlopen(url, timeout=REQUEST_TIMEOUT_S) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError:
        return "" if accept_errors else None
    except (OSError, ValueError):
        return None


def _json(text: str | None) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        found = json.loads(text or "{}")
        return found if isinstance(found, dict) else {}
    return {}


def _integer(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None
