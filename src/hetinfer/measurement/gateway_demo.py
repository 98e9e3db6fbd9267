"""A plan on real servers: a fast and a slow vLLM on the CPU, LiteLLM before them, a mixed load.

The fast server stands for an H100 and the slow one for a 4090, at the study's prices: what is shown
is that requests go where the plan says, not how fast those cards are. Each server is measured alone
first; the plan, and the simulation beside each measured load, come from what that shows. The proxy
itself is not simulated, so a measured TTFT holds its time, too; where two cores carry all of it,
the servers also wait for each other.
"""

import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from hetinfer.fleet.availability import NO_OUTAGES, outages_of
from hetinfer.fleet.dispatch import GONE, SERVED
from hetinfer.fleet.gateway import POLICY, Gateway, gateway_text, save_gateway
from hetinfer.fleet.simulation import FleetRun
from hetinfer.measurement.gateway_bench import Bench, Say, running_bench
from hetinfer.measurement.gateway_case import (
    BATCH,
    CHAT,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    SERVED_MODEL,
    Case,
    burst_load,
    chat_load,
    mixed_loads,
    plan_case,
    pool_of,
    simulate_sent,
)
from hetinfer.measurement.gateway_load import (
    ClassLoad,
    Served,
    landed,
    running_gateway,
    send_loads,
    served_by,
    warm_up,
)
from hetinfer.measurement.processes import kill
from hetinfer.measurement.server import Server
from hetinfer.paths import write_atomically
from hetinfer.values import rounded

ANSWERED_BEFORE_KILL = 10
POLL_S = 0.05
MIXED, BURST, POOLED, KILLED, ONE_LEFT = "mixed", "burst", "pooled", "killed", "one-left"
POLICIES = {POOLED: "least-work", ONE_LEFT: "least-work"}  # what comes closest to the router
NO_CHECKS_S = 86_400.0  # health checks only at start: later ones would be counted as the load's


@dataclass(frozen=True)
class Phase:
    """One load through the gateway, as measured and as simulated.

    `sent` has every request as its client saw it; `on` the requests that each server answered, by
    class; `simulated` the same traffic on the fitted engines.
    """

    name: str
    sent: pd.DataFrame
    on: Mapping[str, tuple[int, ...]]
    simulated: FleetRun


@dataclass(frozen=True)
class GatewayDemo:
    """What the demo showed, and the plan behind it."""

    case: Case
    phases: tuple[Phase, ...]


def run_demo(interpreter: Path, bin_dir: Path, folder: Path, *, say: Say) -> GatewayDemo:
    """Start the servers, measure each, plan, route, overflow, kill; files and logs in `folder`.

    `interpreter` has vLLM, `bin_dir` the routers. InputError without them; ServerError or
    ClientError when one of them fails.
    """
    shutil.rmtree(folder, ignore_errors=True)  # what an earlier demo left
    with running_bench(interpreter, folder, SERVED_MODEL, say) as bench:
        case = plan_case(bench.engines)
        say(f"plan: {case.plan.fleet}\n{gateway_text(case.gateway)}")
        urls = [server.base_url for server in bench.servers]
        each = {b.name: [url] for b, url in zip(case.gateway.backends, urls, strict=True)}
        pool = pool_of(case.gateway)
        with (
            _routed(case.gateway, folder, bin_dir, each) as gateway,
            _routed(pool, folder / "pool", bin_dir, {pool.backends[0].name: urls}) as pooled,
        ):

            def phase(name: str, said: str, target: Server, loads: Sequence[ClassLoad]) -> Phase:
                say(said)
                return run_phase(name, bench, case, target, loads)

            mixed, some = mixed_loads(case), [chat_load(case)]
            phases = (
                phase(MIXED, "a mixed load", gateway, mixed),
                phase(
                    BURST,
                    "a burst of batch, more than its server takes",
                    gateway,
                    [burst_load(case)],
                ),
                phase(POOLED, "chat on both servers as one configuration", pooled, some),
                phase(KILLED, "a mixed load, and the fast server is killed", gateway, mixed),
                phase(ONE_LEFT, "chat on both as one, of which one is dead", pooled, some),
            )
    return GatewayDemo(case, phases)


def run_phase(
    name: str, bench: Bench, case: Case, gateway: Server, loads: Sequence[ClassLoad]
) -> Phase:
    """Send loads and see where they land; in the phase `killed` the fast server dies meanwhile."""
    before = [served_by(server) for server in bench.servers]
    killed_s: list[float] = []
    over = threading.Event()
    killer = threading.Thread(target=_kill, args=(bench.servers[0], before[0], killed_s, over))
    if name == KILLED:
        killer.start()
    try:
        sent = send_loads(bench.clients, gateway, loads, bench.folder / name)
    finally:
        over.set()
    outages = NO_OUTAGES
    if name == KILLED:
        killer.join()
        outages = outages_of([(killed_s[0] - float(sent["start_s"].min()), 0, GONE)])
    elif bench.servers[0].has_ended():
        outages = outages_of([(0.0, 0, GONE)])
    on = _landed(bench, before, sent)
    return Phase(name, sent, on, simulate_sent(case, sent, POLICIES.get(name, POLICY), outages))


def phase_table(demo: GatewayDemo) -> pd.DataFrame:
    """One row a phase and class: where it landed and how long it took, measured and simulated.

    Columns: phase, class, requests, completed, lost_unbegun (failed before any token: could have
    been retried), lost_begun (failed or cut within the answer), planned_fast_frac, and for each of
    measured_ and simulated_: fast, slow (requests answered), ttft_p50_s.
    """
    rows = []
    shares = demo.case.plan.spread_requests_per_s[:, :, 0]
    for phase in demo.phases:
        for c, name in enumerate(service.name for service in demo.case.plan.demand.classes):
            own = phase.sent[phase.sent["class"] == name]
            if own.empty:
                continue
            failed = own["error"] != ""
            cut = ~failed & (own["tokens"] < OUTPUT_TOKENS[name])
            run = phase.simulated
            simulated = (run.workload.service == c) & (run.end == SERVED)
            row = {
                "phase": phase.name,
                "class": name,
                "requests": len(own),
                "completed": int((~failed & ~cut).sum()),
                "lost_unbegun": int((failed & (own["tokens"] == 0)).sum()),
                "lost_begun": int((failed & (own["tokens"] > 0)).sum() + cut.sum()),
                "planned_fast_frac": float(shares[0, c] / shares[:, c].sum()),
                "measured_ttft_p50_s": float(own["ttft_s"].median()),
                "simulated_ttft_p50_s": float(np.median(run.ttft_s[simulated])),
            }
            for server, place in enumerate(("fast", "slow")):
                row[f"measured_{place}"] = phase.on[name][server]
                row[f"simulated_{place}"] = int((run.engine[simulated] == server).sum())
            rows.append(row)
    return pd.DataFrame(rows)


def demo_text(demo: GatewayDemo) -> str:
    """The table as lines, and what it shows: whether classes landed as planned, what was lost."""
    table = phase_table(demo)
    lines = [
        "phase   class  requests  measured fast + slow  simulated  TTFT P50 measured, simulated"
    ]
    for row in table.to_dict("records"):
        lines.append(
            f"{row['phase']:<10}{row['class']:<7}{row['requests']:>8}  "
            f"{row['measured_fast']:>13} + {row['measured_slow']:<4} "
            f"{row['simulated_fast']:>6} + {row['simulated_slow']:<4} "
            f"{rounded(row['measured_ttft_p50_s'], 2):>8} s, "
            f"{rounded(row['simulated_ttft_p50_s'], 2)} s"
        )
    begun, unbegun = int(table["lost_begun"].sum()), int(table["lost_unbegun"].sum())
    lines.append(
        f"lost: {unbegun} requests that could be retried, "
        f"{begun} whose answer had begun on the server that was killed"
    )
    return "\n".join(lines)


def save_demo(demo: GatewayDemo, folder: Path) -> Path:
    """Write the table as CSV; its path."""
    path = folder / "phases.csv"
    write_atomically(path, phase_table(demo).to_csv(index=False))
    return path


@contextmanager
def _routed(
    gateway: Gateway, folder: Path, bin_dir: Path, addresses: Mapping[str, Sequence[str]]
) -> Iterator[Server]:
    save_gateway(gateway, folder, health_check_interval_s=NO_CHECKS_S)
    with running_gateway(gateway, folder, bin_dir, addresses) as running:
        warm_up(running, list(gateway.lanes))
        yield running


def _kill(server: Server, before: Served, killed_s: list[float], stop: threading.Event) -> None:
    """Kill a server once it has answered some requests of a load, or the load is over."""
    while not stop.wait(POLL_S):
        if served_by(server).since(before).requests >= ANSWERED_BEFORE_KILL:
            break
    killed_s.append(time.perf_counter())
    if server.program is not None:
        kill(server.program)


def _landed(
    bench: Bench, before: Sequence[Served], sent: pd.DataFrame
) -> dict[str, tuple[int, ...]]:
    """Requests answered by each server, by class; by a dead one, those that the other did not."""
    tokens = (PROMPT_TOKENS[CHAT], PROMPT_TOKENS[BATCH])
    slow = landed(served_by(bench.servers[1]).since(before[1]), tokens)
    if bench.servers[0].has_ended():
        answered = sent[sent["error"] == ""].groupby("class").size()
        fast = tuple(int(answered.get(n, 0)) - k for n, k in zip((CHAT, BATCH), slow, strict=True))
    else:
        fast = landed(served_by(bench.servers[0]).since(before[0]), tokens)
    return dict(zip((CHAT, BATCH), zip(fast, slow, strict=True), strict=True))
