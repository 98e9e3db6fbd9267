"""The two servers of the gateway's demo: started, measured alone, and fitted."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from hetinfer.hardware import CPU
from hetinfer.measurement.client import Dataset, Load, run_client
from hetinfer.measurement.dummy_model import write_dummy_model
from hetinfer.measurement.gateway_load import Clients
from hetinfer.measurement.records import OWN
from hetinfer.measurement.server import Server, ServerSpec, serving
from hetinfer.paths import write_atomically
from hetinfer.simulation.engine import Engine
from hetinfer.simulation.measured import load_measured_runs
from hetinfer.simulation.real_engine import engine_from_steps

Say = Callable[[str], None]
SEED = 7
FLAGS = (
    "--load-format",
    "dummy",
    "--enforce-eager",
    "--max-model-len",
    "1024",
    "--dtype",
    "bfloat16",
)
ENV = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
PROMPT_TOKENS, OUTPUT_TOKENS, LENGTH_RANGE = (
    128,
    24,
    "0.5",
)  # of the load that each server is fitted to
PROMPTS, RATE_REQUESTS_PER_S = 30, 1.5
CLIENT_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Place:
    """One server of the demo: the configuration it stands for, its model, its core, its grid."""

    gpu: str
    model: str
    core: int
    region: str  # of two equally cheap plans the cleaner is chosen


PLACES = (
    Place("h100-pcie", "dummy/llama-768x8", 0, "World"),
    Place("rtx-4090", "dummy/llama-1024x20", 1, "FR"),
)


@dataclass(frozen=True)
class Bench:
    """The demo's two servers, fast one first, with what is known of them, and who sends to them."""

    servers: tuple[Server, ...]
    engines: tuple[Engine, ...]
    clients: Clients
    folder: Path


@contextmanager
def running_bench(interpreter: Path, folder: Path, model: str, say: Say) -> Iterator[Bench]:
    """Start both servers under one model's name, and fit each; they run while the block lasts.

    Raises InputError without vLLM, and ServerError or ClientError when something fails.
    """
    with ExitStack() as stack:
        servers = []
        for place in PLACES:
            say(f"starting {place.model} on core {place.core}, in the place of {place.gpu}")
            source = write_dummy_model(
                place.model, folder / "models" / place.model.replace("/", "-")
            )
            spec = ServerSpec(
                interpreter,
                str(source),
                model,
                FLAGS,
                tuple({**ENV, "VLLM_CPU_OMP_THREADS_BIND": str(place.core)}.items()),
            )
            log = folder / f"{place.gpu}.server.log"
            servers.append(stack.enter_context(serving(spec, log=log)))
        clients = Clients(interpreter, source, model, SEED)
        say("measuring each alone")
        engines = tuple(
            fit_alone(clients, server, folder / "alone" / place.gpu)
            for server, place in zip(servers, PLACES, strict=True)
        )
        yield Bench(tuple(servers), engines, clients, folder)


def fit_alone(clients: Clients, server: Server, folder: Path) -> Engine:
    """The engine that a load on one server shows; its front end is the prior one."""
    result = folder / "alone.json"
    load = Load(
        clients.model,
        str(clients.tokenizer),
        Dataset("random", "", PROMPT_TOKENS, OUTPUT_TOKENS),
        PROMPTS,
        RATE_REQUESTS_PER_S,
        clients.seed,
        flags=("--random-range-ratio", LENGTH_RANGE),
    )
    run_client(
        clients.interpreter,
        server,
        load,
        result=result,
        log=folder / "client.log",
        timeout_s=CLIENT_TIMEOUT_S,
    )
    own = {
        "engine": asdict(server.engine),
        "replicate": 1,
        "position": 0,
        "seed": clients.seed,
        "fresh_prompts": False,
    }
    labels = {"gpu": CPU, "gpu_count": 1, "dataset": "random", OWN: own}
    told = json.loads(result.read_text()) | labels
    told["engine_version"] = server.engine.version or ""
    write_atomically(result, json.dumps(told))
    return engine_from_steps(load_measured_runs(folder))
