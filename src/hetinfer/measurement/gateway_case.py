"""What the gateway's demo is to show: a plan for two servers, its gateway, and loads for it.

The demand is made for the servers at hand: chat that only the fast one serves in time, and batch
work that needs both.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from hetinfer.fleet.availability import NO_OUTAGES, OwnerOutages
from hetinfer.fleet.checking import simulate_plan
from hetinfer.fleet.demand import ServiceClass, Workload
from hetinfer.fleet.gateway import Gateway, Lane, gateway_of
from hetinfer.fleet.offers import Capacities, capacities_of, draw_curves, offer_of
from hetinfer.fleet.planning import Demand, Plan, plan_fleet
from hetinfer.fleet.simulation import FleetRun
from hetinfer.hardware import load_prices
from hetinfer.measurement.gateway_bench import PLACES
from hetinfer.measurement.gateway_load import ClassLoad
from hetinfer.simulation.engine import Engine
from hetinfer.simulation.fitted import load_calibrations
from hetinfer.workload import Floats, Lengths, fresh_requests

SERVED_MODEL = "DeepSeek-R1-Distill-Llama-8B"  # the study's, whose prices and cards are taken
PRICES = "study-2025"
CHAT, BATCH = "chat", "batch"
PROMPT_TOKENS = {CHAT: 64, BATCH: 192}
OUTPUT_TOKENS = {CHAT: 16, BATCH: 32}
BATCH_TTFT_TARGET_S = 20.0
CHAT_PART = 0.95  # of what the fast server can do of chat: leaves it little room for more
CURVE_REQUESTS = 1000
LOAD_S = 25.0  # how long a mixed load lasts
LOAD_PART = 0.5  # of the plan's rates is sent: proxy and clients need the servers' cores, too
MORE_THAN_FITS = 12  # requests of a burst beyond what its first server takes
SEED = 11


@dataclass(frozen=True)
class Case:
    """What is to be shown: the plan for the demand, and the gateway that it makes."""

    plan: Plan
    capacities: Capacities
    gateway: Gateway


def plan_case(engines: Sequence[Engine]) -> Case:
    """The plan for chat that only the fast server does in time, and batch work that needs both.

    Chat's TTFT target is the geometric mean of what the two servers do at light load; its rate is
    `CHAT_PART` of what the fast one then serves; batch asks what room that leaves there and half of
    what the slow one can.
    """
    calibration, prices = load_calibrations()[0], load_prices(PRICES)
    offers = [
        replace(
            offer_of(calibration, SERVED_MODEL, (place.gpu, 1), prices, place.region, most=1),
            engine=engine,
        )
        for place, engine in zip(PLACES, engines, strict=True)
    ]
    classes = [_class(CHAT, 1.0), _class(BATCH, BATCH_TTFT_TARGET_S)]
    curves = draw_curves(offers, classes, CURVE_REQUESTS, SEED)
    light_s = [float(curves[(offer.name, CHAT)]["ttft_p99_s"].iloc[0]) for offer in offers]
    classes[0] = replace(classes[0], ttft_target_s=float(np.sqrt(np.prod(light_s))))
    capacities = capacities_of(offers, classes, curves)
    rates = capacities.requests_per_s
    batch = (1 - CHAT_PART) * rates[0, 1] + rates[1, 1] / 2
    demand = Demand(tuple(classes), np.array([[CHAT_PART * rates[0, 0]], [batch]]))
    plan = plan_fleet(demand, offers, capacities)
    return Case(plan, capacities, gateway_of(plan, capacities, SERVED_MODEL))


def mixed_loads(case: Case) -> list[ClassLoad]:
    """Both classes at half the plan's rates; chat asks by name, batch by tag."""
    planned = LOAD_PART * case.plan.demand.requests_per_s[:, 0]
    rates = dict(zip((CHAT, BATCH), planned, strict=True))
    return [
        ClassLoad(
            name,
            PROMPT_TOKENS[name],
            OUTPUT_TOKENS[name],
            max(2, round(LOAD_S * rate)),
            float(rate),
            by_tag=name == BATCH,
        )
        for name, rate in rates.items()
    ]


def burst_load(case: Case) -> ClassLoad:
    """Batch requests all at once, more than its first lane takes."""
    limit = case.gateway.lanes[BATCH][0].most_in_flight or 0
    return ClassLoad(
        BATCH, PROMPT_TOKENS[BATCH], OUTPUT_TOKENS[BATCH], limit + MORE_THAN_FITS, float("inf")
    )


def chat_load(case: Case) -> ClassLoad:
    """Chat alone, half as many requests."""
    chat = mixed_loads(case)[0]
    return replace(chat, prompts=max(2, chat.prompts // 2))


def pool_of(gateway: Gateway) -> Gateway:
    """Both servers as two of one configuration, which vllm-router is to spread over."""
    last = gateway.backends[-1]
    both = replace(last, servers=len(gateway.backends))
    lanes = {
        name: (Lane(both, sum(lane.most_in_flight or 0 for lane in way)), Lane(both, None))
        for name, way in gateway.lanes.items()
    }
    return Gateway(gateway.model, lanes)


def simulate_sent(
    case: Case, sent: pd.DataFrame, policy: str, outages: OwnerOutages = NO_OUTAGES
) -> FleetRun:
    """The traffic that was sent, on the plan's engines, with the gateway's own limits."""
    classes = case.plan.demand.classes
    names = [service.name for service in classes]
    start_s = sent["start_s"].to_numpy(float)
    requests = fresh_requests(
        start_s - start_s.min(),
        sent["class"].map(PROMPT_TOKENS).to_numpy(np.int64),
        sent["class"].map(OUTPUT_TOKENS).to_numpy(np.int64),
    )
    workload = Workload(classes, requests, sent["class"].map(names.index).to_numpy(np.int64))
    capacities = replace(case.capacities, in_flight=_limits(case))
    return simulate_plan(case.plan, capacities, policy, workload, outages=outages)


def _class(name: str, ttft_target_s: float) -> ServiceClass:
    lengths = Lengths(np.array([PROMPT_TOKENS[name]]), np.array([OUTPUT_TOKENS[name]]))
    return ServiceClass(name, lengths, ttft_target_s)


def _limits(case: Case) -> Floats:
    """Most requests in flight that the gateway allows, (n_offers, n_classes); 0: it sends none."""
    limits = np.zeros(case.capacities.in_flight.shape)
    names = [offer.name for offer in case.plan.offers]
    for c, way in enumerate(case.gateway.lanes.values()):
        for lane in way:
            if lane.most_in_flight is not None:
                limits[names.index(lane.backend.configuration), c] = lane.most_in_flight
    return limits
