"""Loads on a gateway: a client for each class, and on which server its requests landed."""

import json
import secrets
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from hetinfer.errors import InputError
from hetinfer.fleet.gateway import MASTER_KEY, SCRIPT, Gateway
from hetinfer.measurement.client import Dataset, Load, run_client
from hetinfer.measurement.dummy_model import WORD
from hetinfer.measurement.processes import kept, log_end
from hetinfer.measurement.server import (
    HOST,
    Server,
    ServerError,
    await_health,
    counter,
    free_port,
)

READY = "/health/liveliness"  # LiteLLM's, which asks nothing of the servers
START_TIMEOUT_S = 120.0
CLIENT_TIMEOUT_S = 300.0
SENT = ["class", "start_s", "ttft_s", "e2el_s", "tokens", "error"]
CHAT_PATH = "/v1/chat/completions"  # LiteLLM falls back here; not for streamed /v1/completions
NO_END = json.dumps({"logit_bias": {"0": -100}})  # token 0 ends an answer, and is no word of it
CHAT_FLAGS = ("--backend", "openai-chat", "--endpoint", CHAT_PATH, "--extra-body", NO_END)
WARM_UPS = 3


@dataclass(frozen=True)
class ClassLoad:
    """What one class sends: requests of one length at one rate (inf: all at once).

    It asks for its class by name, or by `tag` for the model.
    """

    name: str
    prompt_tokens: int
    output_tokens: int
    prompts: int
    rate_requests_per_s: float
    by_tag: bool = False


@contextmanager
def running_gateway(
    gateway: Gateway, folder: Path, bin_dir: Path, addresses: Mapping[str, Sequence[str]]
) -> Iterator[Server]:
    """Start a gateway's routers with the script in a folder while the block lasts.

    `bin_dir` has `litellm` and `vllm-router`; `addresses` are the servers' by backend name. The key
    is made here and is in no file. InputError without the programs; ServerError if they do not
    answer.
    """
    if not (bin_dir / "litellm").is_file():
        raise InputError(
            "no router",
            got="no litellm",
            expected="an environment with litellm and vllm-router",
            where=bin_dir,
            do="run make gateway",
        )
    key, port = f"sk-{secrets.token_hex(16)}", free_port(0)
    env = {
        MASTER_KEY: key,
        "GATEWAY_PORT": str(port),
        "PATH": f"{bin_dir}:/usr/local/bin:/usr/bin:/bin",
        **{one.variable: " ".join(addresses[one.name]) for one in gateway.backends},
    }
    log = folder / "gateway.log"
    base_url = f"http://{HOST}:{port}"
    with kept(["bash", folder / SCRIPT], log=log, env=env) as program:
        await_health(base_url, program, START_TIMEOUT_S, path=READY)
        yield Server(base_url, program=program, key=key)


def warm_up(gateway: Server, names: Sequence[str]) -> None:
    """Ask every class a few times: a proxy that just started takes seconds for its first answers.

    Raises ServerError if it does not answer.
    """
    for name in [*names] * WARM_UPS:
        body = {"model": name, "max_tokens": 1, "messages": [{"role": "user", "content": WORD}]}
        request = urllib.request.Request(
            f"{gateway.base_url}{CHAT_PATH}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {gateway.key}"},
        )
        try:
            urllib.request.urlopen(request, timeout=START_TIMEOUT_S).close()
        except OSError as error:
            log = gateway.program.log if gateway.program else Path()
            raise ServerError("gateway-failed", f"{name}: {error}", log_end(log)) from error


@dataclass(frozen=True)
class Clients:
    """How classes are sent: the Python that has vLLM, the tokenizer, the model's name, a seed."""

    interpreter: Path
    tokenizer: Path
    model: str
    seed: int


def send_loads(
    clients: Clients, gateway: Server, loads: Sequence[ClassLoad], folder: Path
) -> pd.DataFrame:
    """Send every class's load at once, each by vLLM's client; one row a request by time of sending.

    Columns `SENT`: seconds of the machine's monotonic clock, tokens of the answer that came, and
    the error ('' where all went well). ClientError if a client itself fails.
    """

    def send(load: ClassLoad) -> pd.DataFrame:
        result = folder / f"{load.name}.json"
        run_client(
            clients.interpreter,
            gateway,
            client_load(load, clients),
            result=result,
            log=folder / f"{load.name}.log",
            timeout_s=CLIENT_TIMEOUT_S,
        )
        return sent_requests(result, load.name)

    with ThreadPoolExecutor(len(loads)) as pool:
        sent = pd.concat(list(pool.map(send, loads)), ignore_index=True)
    return sent.sort_values("start_s", kind="stable", ignore_index=True)


def client_load(load: ClassLoad, clients: Clients) -> Load:
    """A class's load as vLLM's client takes it."""
    return Load(
        model=clients.model if load.by_tag else load.name,
        tokenizer=str(clients.tokenizer),
        dataset=Dataset("random", "", load.prompt_tokens, load.output_tokens),
        prompts=load.prompts,
        rate_requests_per_s=load.rate_requests_per_s,
        seed=clients.seed,
        flags=(*CHAT_FLAGS, *(("--header", f"x-litellm-tags={load.name}") if load.by_tag else ())),
    )


def sent_requests(result: Path, name: str) -> pd.DataFrame:
    """What vLLM's client says of each request, columns `SENT`.

    A request that failed has no TTFT unless its answer had begun; its E2EL is missing. Tokens are
    words of the answer, as a dummy model's are: the proxy leaves out what the server counts.
    """
    told = json.loads(result.read_text())
    gaps = [list(one) for one in told["itls"]]
    ttft_s = np.array(told["ttfts"], float)
    began = ttft_s > 0
    errors = [str(error or "") for error in told["errors"]]
    ends_s = ttft_s + np.array([sum(one) for one in gaps])
    return pd.DataFrame(
        {
            "class": name,
            "start_s": told["start_times"],
            "ttft_s": np.where(began, ttft_s, np.nan),
            "e2el_s": np.where([error == "" for error in errors], ends_s, np.nan),
            "tokens": [len(text.split()) for text in told["generated_texts"]],
            "error": errors,
        },
        columns=SENT,
    )


@dataclass(frozen=True)
class Served:
    """What a server's own counters say: requests answered, and tokens of their prompts."""

    requests: float
    prompt_tokens: float

    def since(self, before: "Served") -> "Served":
        """What came after an earlier look."""
        return Served(
            self.requests - before.requests,
            self.prompt_tokens - before.prompt_tokens,
        )


def served_by(server: Server) -> Served:
    """A look at a server's counters; a server without an answer yet counts 0."""
    names = ("vllm:request_success_total", "vllm:prompt_tokens_total")
    found = [counter(server.base_url, name) for name in names]
    return Served(*(0.0 if np.isnan(value) else value for value in found))


def landed(served: Served, prompt_tokens: tuple[int, int]) -> tuple[int, int]:
    """How many requests of two classes a server answered, told apart by their prompts' lengths.

    Of n = a + b requests with P = a p + b q tokens, b = (P - n p) / (q - p). InputError where that
    is no whole number: somebody else asked, too.
    """
    first, second = prompt_tokens
    others = (served.prompt_tokens - served.requests * first) / (second - first)
    if others != round(others) or not 0 <= others <= served.requests:
        raise InputError(
            "requests of other lengths",
            got=f"{served.requests:g} requests with {served.prompt_tokens:g} tokens",
            expected=f"prompts of {first} and {second} tokens",
            where="a server's counters",
            do="leave the servers to this alone",
        )
    return round(served.requests - others), round(others)
