"""A plan on real servers: LiteLLM's proxy over the configurations, vllm-router inside one.

LiteLLM sends each class to its own tier, the one that serves it cheapest within its targets, while
fewer of its requests are in flight there than keep them; then to the next configuration that does;
when all are full, to the first, to wait there; and where that fails, to any other. A request whose
server fails goes the same way. Several servers of one configuration stand behind vllm-router, which
spreads by load and leaves out those that do not answer. What a class may have in flight is its own
count: the proxy cannot see how full a server is, as policies of the simulation can. `POLICY` there
is the closest, so plans for a gateway are checked under it. LiteLLM falls back for chat completions
and for others that are not streamed; a streamed /v1/completions fails with its server, and an
answer that has begun ends early.

Passed over: vllm-router alone, which knows no fallback between configurations; LiteLLM alone, which
does not see the load of servers that several classes share.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from hetinfer.errors import InputError
from hetinfer.fleet.offers import FLOCK_SIGMAS, Capacities, home_tiers, with_swings
from hetinfer.fleet.planning import Plan
from hetinfer.paths import write_atomically

Floats = npt.NDArray[np.float64]
MASTER_KEY, SERVER_KEY = "LITELLM_MASTER_KEY", "HETINFER_SERVER_KEY"
CONFIG, SCRIPT = "litellm.yaml", "start.sh"
HEALTH_CHECK_INTERVAL_S = 60.0
POLICY = "class-overflow"  # of the simulation, that does what the gateway does


@dataclass(frozen=True)
class Backend:
    """Servers of one configuration behind one address."""

    configuration: str
    gpu: str
    gpu_count: int
    servers: int

    @property
    def name(self) -> str:
        """As the files name it: `rtx-4090-x2`."""
        return f"{self.gpu}-x{self.gpu_count}"

    @property
    def variable(self) -> str:
        """The environment variable with the servers' addresses."""
        return f"HETINFER_{self.name.upper().replace('-', '_')}_URLS"

    @property
    def api_variable(self) -> str:
        """The environment variable that `SCRIPT` sets to the one address for LiteLLM."""
        return self.variable.removesuffix("_URLS") + "_API"


@dataclass(frozen=True)
class Lane:
    """Where a class may go: a backend, and its most requests in flight there (None: any number)."""

    backend: Backend
    most_in_flight: int | None


@dataclass(frozen=True)
class Gateway:
    """What the routers are to do: by class, its lanes in the order in which they are tried."""

    model: str
    lanes: Mapping[str, tuple[Lane, ...]]

    @property
    def backends(self) -> tuple[Backend, ...]:
        """Every backend once, in the plan's order."""
        return tuple(dict.fromkeys(lane.backend for way in self.lanes.values() for lane in way))


def gateway_of(plan: Plan, capacities: Capacities, model: str) -> Gateway:
    """The lanes of each class of a plan.

    First the configurations of its own tier, then others that keep its targets; within a tier the
    larger part of the plan first, then the cheaper. Each up to what the class's part of its servers
    keeps in flight, or all of them where the plan gives it none. Then the first one again, without
    limit; and last, should it fail, every other one. InputError for a plan without servers, or a
    class that none of them serves in time.
    """
    held = [k for k, count in enumerate(plan.counts) if count]
    if not held:
        raise _gateway_error("empty plan", "no server", "at least one")
    backends = {
        k: Backend(
            plan.offers[k].name, plan.offers[k].gpu, plan.offers[k].gpu_count, plan.counts[k]
        )
        for k in held
    }
    shares, homes = planned_shares(plan, capacities), home_tiers(plan.offers, capacities)
    lanes = {}
    for c, service in enumerate(plan.demand.classes):
        able = [k for k in held if capacities.requests_per_s[k, c] > 0]
        if not able:
            raise _gateway_error(f"class {service.name}", "no server that keeps its targets", "one")
        usd = {k: plan.offers[k].usd_per_h / capacities.requests_per_s[k, c] for k in able}
        away = {k: plan.offers[k].tier != homes[c] for k in able}
        order = sorted(able, key=lambda k: (away[k], -shares[k, c], usd[k]))
        limits = [
            most_in_flight(capacities.in_flight[k, c], plan.counts[k], shares[k, c]) for k in order
        ]
        way = [Lane(backends[k], limit) for k, limit in zip(order, limits, strict=True)]
        rest = [k for k in held if k != order[0]]
        lanes[service.name] = (*way, *(Lane(backends[k], None) for k in (order[0], *rest)))
    return Gateway(model, lanes)


def planned_shares(plan: Plan, capacities: Capacities) -> Floats:
    """Which part of each configuration's servers a class needs in its busiest hour, (n_offers, n).

    max over t of x[k, c, t] / (r[k, c] n[k]), as in `planning`; 0 where the plan sends none.
    """
    room = capacities.requests_per_s * np.array(plan.counts)[:, np.newaxis]
    busiest = plan.spread_requests_per_s.max(axis=2)
    shares: Floats = np.divide(busiest, room, out=np.zeros_like(busiest), where=room > 0)
    return shares


def most_in_flight(one_server: float, servers: int, part: float) -> int:
    """Requests in flight on a part of several servers, swings included; a part of 0 means all.

    One server's m + 2 sqrt(m) is `one_server`; of n servers' part f it is n f m + 2 sqrt(n f m),
    at least 1.
    """
    root = math.sqrt(one_server + (FLOCK_SIGMAS / 2) ** 2) - FLOCK_SIGMAS / 2
    return math.floor(with_swings(root**2 * servers * (part or 1.0)) + 0.5)


def litellm_config(
    gateway: Gateway, *, health_check_interval_s: float = HEALTH_CHECK_INTERVAL_S
) -> str:
    """LiteLLM's configuration as YAML; keys and addresses stay in the environment.

    A class is asked for by its name as the model, or by the model's own name and the class as tag
    (header `x-litellm-tags`); without a tag the first class is meant.
    """
    first = next(iter(gateway.lanes))
    deployments = []
    for name, way in gateway.lanes.items():
        tags = [name, "default"] if name == first else [name]
        for place, lane in enumerate(way, start=1):
            deployments.append(_deployment(gateway.model, name, lane, place))
            deployments.append(_deployment(gateway.model, gateway.model, lane, place, tags))
    config = {
        "model_list": deployments,
        "router_settings": {
            "enable_tag_filtering": True,
            "num_retries": 0,  # the next lane is the retry
            "max_fallbacks": max(len(way) for way in gateway.lanes.values()),
            # a lane that is full is healthy, and one that is down says so at once: neither is
            # benched, which would leave a class without any; a silent server fails its checks
            "disable_cooldowns": True,
            "enable_health_check_routing": True,
        },
        "litellm_settings": {"telemetry": False},
        "general_settings": {
            "master_key": f"os.environ/{MASTER_KEY}",
            "background_health_checks": True,
            "health_check_interval": health_check_interval_s,
        },
    }
    return str(yaml.safe_dump(config, sort_keys=False, width=100))


def start_script(gateway: Gateway) -> str:
    """The shell script that starts the routers; it says which variables are missing.

    Each backend's addresses come from its variable; one with several servers gets a vllm-router of
    its own, on a port above the proxy's.
    """
    lines = [
        "#!/usr/bin/env bash",
        f"# Starts the routers of a plan for {gateway.model}; stop them with Ctrl-C.",
        "set -euo pipefail",
        'cd "$(dirname "$0")"',
        f': "${{{MASTER_KEY}:?set it to the key that clients are to send, sk-...}}"',
        *(
            f': "${{{backend.variable}:?set it to the addresses of {backend.servers} x '
            f'({backend.configuration}), such as http://10.0.0.5:8000, with spaces between}}"'
            for backend in gateway.backends
        ),
        f"export {SERVER_KEY}=${{{SERVER_KEY}:-none}}  # the key that the servers want, if any",
        "port=${GATEWAY_PORT:-4000}",
        "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT",
    ]
    for place, backend in enumerate(gateway.backends, start=1):
        if backend.servers > 1:
            lines += [
                f"# {backend.servers} x ({backend.configuration}) behind one address",
                f"vllm-router --host 127.0.0.1 --port $((port + {place})) --policy power_of_two \\",
                f"  --prometheus-port $((port + 100 + {place})) --health-check-interval-secs 10 \\",
                # a tie is drawn: a retry must not meet the dead server again and again
                "  --cb-failure-threshold 2 --worker-startup-check-interval 2 \\",
                f"  --worker-urls ${backend.variable} &",
                f"export {backend.api_variable}=http://127.0.0.1:$((port + {place}))/v1",
            ]
        else:
            lines.append(f"export {backend.api_variable}=${backend.variable}/v1")
    lines += [
        "# nothing is fetched at start, nothing is sent home",
        "export LITELLM_LOCAL_MODEL_COST_MAP=True",
        f'litellm --config {CONFIG} --host "${{GATEWAY_HOST:-127.0.0.1}}" --port "$port" &',
        "wait -n  # a router that ends ends all",
    ]
    return "\n".join(lines) + "\n"


def save_gateway(
    gateway: Gateway, folder: Path, *, health_check_interval_s: float = HEALTH_CHECK_INTERVAL_S
) -> tuple[Path, Path]:
    """Write `litellm.yaml` and `start.sh` into a folder; their paths."""
    config, script = folder / CONFIG, folder / SCRIPT
    write_atomically(
        config, litellm_config(gateway, health_check_interval_s=health_check_interval_s)
    )
    write_atomically(script, start_script(gateway))
    return config, script


def gateway_text(gateway: Gateway) -> str:
    """The lanes of each class as lines, and the environment that the script wants."""
    lines = []
    for name, way in gateway.lanes.items():
        steps = [
            f"{lane.backend.configuration} ({_limit_text(lane.most_in_flight)})" for lane in way
        ]
        lines.append(f"  {name}: {', then '.join(steps)}")
    wanted = [MASTER_KEY, *(backend.variable for backend in gateway.backends)]
    return "\n".join(
        [f"{gateway.model}, requests in flight:", *lines, f"  set {', '.join(wanted)}"]
    )


def _limit_text(limit: int | None) -> str:
    return "any number" if limit is None else f"up to {limit}"


def _deployment(
    model: str, group: str, lane: Lane, place: int, tags: list[str] | None = None
) -> dict[str, Any]:
    params: dict[str, Any] = {
        "model": f"hosted_vllm/{model}",
        "api_base": f"os.environ/{lane.backend.api_variable}",
        "api_key": f"os.environ/{SERVER_KEY}",
        "order": place,
    }
    if lane.most_in_flight is not None:
        params["max_parallel_requests"] = lane.most_in_flight
    if tags:
        params["tags"] = list(tags)
    asked = "tag" if tags else "name"
    service = tags[0] if tags else group
    return {
        "model_name": group,
        "litellm_params": params,
        "model_info": {
            "id": f"{service}-by-{asked}-{place}-{lane.backend.name}",
            "mode": "completion",
        },
    }


def _gateway_error(what: str, got: str, expected: str) -> InputError:
    return InputError(
        what, got=got, expected=expected, where="the gateway", do="plan a fleet first"
    )
