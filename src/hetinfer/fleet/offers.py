"""What may be rented: configurations with price, power, carbon, and what each class gets of them.

Capacities come from curves of latency against rate (`simulation.capacity`), one an offer and class,
so that another target costs no simulation. Several consumer cards as one engine assume a host that
keeps up, which those of the study did not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from hetinfer.errors import InputError
from hetinfer.fleet.demand import ServiceClass, check_class
from hetinfer.fleet.simulation import Member
from hetinfer.footprint.carbon import (
    Machine,
    embodied_g_per_mtoken,
    known_machine,
    kwh_per_mtoken,
    middle_machine,
)
from hetinfer.footprint.grid import find_grid
from hetinfer.hardware import check_price, configuration_label, find_gpu, find_model
from hetinfer.metrics import SECONDS_PER_HOUR, TOKENS_PER_MTOKEN
from hetinfer.simulation.capacity import (
    Load,
    capacity_requests_per_s,
    healthy_host,
    latency_curve,
)
from hetinfer.simulation.engine import Engine
from hetinfer.simulation.fitted import Calibration, serving_engine
from hetinfer.workload import Lengths

Floats = npt.NDArray[np.float64]
TIERS = {"enterprise": 0, "consumer": 1}
FLOCK_SIGMAS = 2.0  # of a Poisson count: how far above its mean the load of an engine may swing
ONE_HOUR_TOKENS_PER_S = TOKENS_PER_MTOKEN / SECONDS_PER_HOUR  # makes a million in an hour


@dataclass(frozen=True)
class Offer:
    """One configuration that may be rented, all numbers of one copy.

    `most` copies may be had, each there `available_frac` of the time. Powers hold host and site;
    `embodied_g_per_h` is what an hour of existence carries of its making.
    """

    gpu: str
    gpu_count: int
    engine: Engine
    usd_per_h: float
    busy_w: float
    idle_w: float
    embodied_g_per_h: float
    g_per_kwh: float
    most: int = 1000
    available_frac: float = 1.0

    @property
    def name(self) -> str:
        """As tables name it: `2x 4090`."""
        return configuration_label(self.gpu, self.gpu_count)

    @property
    def tier(self) -> int:
        """0 for data-centre cards, 1 for consumer cards."""
        return TIERS[find_gpu(self.gpu).tier]

    @property
    def idle_g_per_h(self) -> float:
        """Carbon in g of an hour in which it only waits."""
        return self.embodied_g_per_h + self.idle_w / 1000 * self.g_per_kwh

    @property
    def busy_g_per_h(self) -> float:
        """Carbon in g of an hour in which it works all the time."""
        return self.embodied_g_per_h + self.busy_w / 1000 * self.g_per_kwh


@dataclass(frozen=True)
class Capacities:
    """What one copy of each offer gives each class alone, arrays (n_offers, n_classes).

    `requests_per_s` within the class's targets (0: never), `saturated_requests_per_s` without any,
    `in_flight` the requests in flight at the former, swings included.
    """

    requests_per_s: Floats
    saturated_requests_per_s: Floats
    in_flight: Floats

    def only(self, allowed: Sequence[bool]) -> "Capacities":
        """The same with nothing from the offers that are not allowed."""
        mask = np.array(allowed, float)[:, np.newaxis]
        return Capacities(*(mask * array for array in astuple(self)))


Curves = Mapping[tuple[str, str], pd.DataFrame]


def offer_of(
    calibration: Calibration,
    model: str,
    configuration: tuple[str, int],
    prices: Mapping[str, float],
    region: str,
    **limits: float,
) -> Offer:
    """A configuration's fitted engine (predicted where none is), its price, power and carbon.

    `configuration` is card and count, `prices` USD per GPU-hour by card, `limits` `most` and
    `available_frac`. Hardware is held for the whole time and carries its own making. InputError for
    a card without price or a model that does not fit on it.
    """
    gpu, count = find_gpu(configuration[0]), configuration[1]
    if gpu.gpu not in prices:
        raise _offer_error("no price", gpu.gpu, f"one of {', '.join(prices)}")
    engine, _ = serving_engine(calibration, find_model(model), gpu, count)
    machine = middle_machine(known_machine(gpu.gpu))
    busy_w, idle_w, embodied_g = _hour_of(machine, count)
    return Offer(
        gpu.gpu,
        count,
        healthy_host(engine),
        count * check_price(prices[gpu.gpu], where=f"the price of {gpu.gpu}"),
        busy_w,
        idle_w,
        embodied_g,
        find_grid(region).g_co2_per_kwh,
        int(limits.get("most", Offer.most)),
        float(limits.get("available_frac", Offer.available_frac)),
    )


def draw_curves(
    offers: Sequence[Offer], classes: Sequence[ServiceClass], requests: int, seed: int
) -> dict[tuple[str, str], pd.DataFrame]:
    """Latency against rate of each offer under each class alone, by (offer, class); new texts."""
    curves = {
        (offer.name, service.name): draw_curve(offer.engine, service.lengths, requests, seed)
        for offer in offers
        for service in classes
    }
    return {key: curve for key, curve in curves.items() if curve is not None}


def draw_curve(engine: Engine, lengths: Lengths, requests: int, seed: int) -> pd.DataFrame | None:
    """Latency against rate of one engine under requests of such lengths; None where one never fits.

    Columns of `LoadPoint`.
    """
    longest = lengths.prompt_tokens.max() + lengths.output_tokens.max()
    if longest > engine.kv_tokens // engine.block_tokens * engine.block_tokens:
        return None
    return latency_curve(engine, Load(lengths, requests, seed=seed))


def capacities_of(
    offers: Sequence[Offer], classes: Sequence[ServiceClass], curves: Curves
) -> Capacities:
    """Capacities at the classes' targets from their curves; 0 where a request never fits.

    In flight are, by Little's law, rate x (TTFT + gaps x TPOT), and two standard deviations of a
    Poisson count more: what an engine is seen to hold while it keeps the targets.
    """
    shape = (len(offers), len(classes))
    rates, saturated, in_flight = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for k, offer in enumerate(offers):
        for c, service in enumerate(classes):
            curve = curves.get((offer.name, check_class(service).name))
            if curve is None:
                continue
            rates[k, c] = capacity_requests_per_s(
                curve, ttft_p99_s=service.ttft_target_s, tpot_p99_s=service.tpot_target_s
            )
            saturated[k, c] = curve["throughput_requests_per_s"].max()
            in_flight[k, c] = _in_flight(curve, rates[k, c], service)
    return Capacities(rates, np.maximum(saturated, rates), in_flight)


def members_of(
    offers: Sequence[Offer],
    counts: Sequence[int],
    classes: Sequence[ServiceClass],
    capacities: Capacities,
) -> list[Member]:
    """The engines of a fleet with so many copies of each offer, as the simulation takes them."""
    tokens = np.array(
        [s.lengths.prompt_tokens.mean() + s.lengths.output_tokens.mean() for s in classes]
    )
    members = []
    for k, (offer, count) in enumerate(zip(offers, counts, strict=True)):
        speed = float((capacities.saturated_requests_per_s[k] * tokens).max())
        if count == 0 or speed == 0:
            continue
        mtoken_per_h = speed / ONE_HOUR_TOKENS_PER_S
        member = Member(
            offer.name,
            offer.engine,
            offer.tier,
            speed,
            offer.usd_per_h / mtoken_per_h,
            offer.busy_g_per_h / mtoken_per_h,
            tuple(capacities.in_flight[k]),
        )
        members += [replace(member, name=f"{offer.name} no. {n + 1}") for n in range(count)]
    return members


def home_tiers(offers: Sequence[Offer], capacities: Capacities) -> tuple[int, ...]:
    """For the policy `static`: each class's tier by the cheapest offer that keeps its targets."""
    usd = np.array([offer.usd_per_h for offer in offers])[:, np.newaxis]
    with np.errstate(divide="ignore"):
        cheapest = np.argmin(usd / capacities.requests_per_s, axis=0)
    return tuple(offers[k].tier for k in cheapest)


def _hour_of(machine: Machine[Floats], count: int) -> tuple[float, float, float]:
    """Watts at work and waiting, and embodied g an hour, of a machine that is held all the time."""
    nothing = np.zeros_like(machine.idle_w)
    always = replace(machine, utilisation_frac=np.ones_like(machine.idle_w))
    waiting = replace(always, board_w=machine.idle_w, host_busy_w=machine.host_idle_w)
    made = embodied_g_per_mtoken(always, count, ONE_HOUR_TOKENS_PER_S, holding="owned")
    busy, idle = (
        kwh_per_mtoken(one, count, ONE_HOUR_TOKENS_PER_S) + nothing for one in (always, waiting)
    )
    return float(busy[0]) * 1000, float(idle[0]) * 1000, float(made[0])


def _in_flight(curve: pd.DataFrame, rate: float, service: ServiceClass) -> float:
    if rate == 0:
        return 0.0
    rates = curve["rate_requests_per_s"].to_numpy(float)
    ttft_s, tpot_s = (
        float(np.interp(rate, rates, curve[name].fillna(0.0).to_numpy(float)))
        for name in ("ttft_p50_s", "tpot_p50_s")
    )
    mean = rate * (ttft_s + tpot_s * (service.lengths.output_tokens.mean() - 1))
    return with_swings(mean)


def with_swings(mean: float) -> float:
    """What an engine may hold when it holds so much on average, at least one request."""
    return float(max(1.0, mean + FLOCK_SIGMAS * np.sqrt(mean)))


def _offer_error(what: str, got: object, expected: str) -> InputError:
    return InputError(what, got=got, expected=expected, where="the offers", do="correct it")
