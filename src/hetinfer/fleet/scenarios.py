"""The traffic that fleets are compared under: service classes, mixes, and what may be rented.

Lengths and targets are choices, not measurements: chat and batch have the lengths of the study's
requests as reconstructed, the others means that are usual for such work. A day's peak is some
thirty requests per second, a fleet of a few cards.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hetinfer.errors import InputError
from hetinfer.fleet.demand import ServiceClass, daily_rates, spread_lengths
from hetinfer.fleet.offers import Curves, Offer, draw_curves, offer_of
from hetinfer.fleet.planning import Demand
from hetinfer.hardware import find_gpu, find_model, kv_capacity_tokens
from hetinfer.simulation.fitted import Calibration, serving_lengths
from hetinfer.workload import Lengths

Floats = npt.NDArray[np.float64]
H100, CONSUMER = "h100-pcie", "rtx-4090"
COUNTS = (1, 2, 4)  # of consumer cards in one engine; scale-out does the rest
FEWEST_CACHE_TOKENS = 10_000  # an engine whose cache holds less cannot batch long requests
CARDS = 200  # of each configuration that may be had: more than any of these plans needs
LATENCY_TARGETS: Mapping[str, float] = {"tight": 0.5, "standard": 1.0, "loose": 4.0}


@dataclass(frozen=True)
class ClassSpec:
    """One class of traffic: mean lengths in tokens (none: the study's), targets in seconds."""

    prompt_tokens: float | None
    output_tokens: float | None
    ttft_target_s: float
    tpot_target_s: float = np.inf


CLASSES: Mapping[str, ClassSpec] = {
    "chat": ClassSpec(None, None, 0.5, 0.06),
    "agents": ClassSpec(1500, 200, 0.8, 0.06),
    "development": ClassSpec(800, 60, 0.8, 0.08),
    "batch": ClassSpec(None, None, 60.0),
    "embeddings": ClassSpec(300, 1, 2.0),
    "evaluation": ClassSpec(600, 40, 120.0),
}
LATENCY_CRITICAL = ("chat", "agents", "development")  # whose targets `LATENCY_TARGETS` scale
# by mix and class: requests per second at the peak, and when that is
MIXES: Mapping[str, Mapping[str, tuple[float, str]]] = {
    "chat": {"chat": (24.0, "day"), "agents": (3.0, "day"), "development": (4.0, "day")},
    "batch": {
        "batch": (12.0, "always"),
        "embeddings": (20.0, "always"),
        "evaluation": (8.0, "night"),
    },
    "mixed day": {
        "chat": (16.0, "day"),
        "agents": (2.0, "day"),
        "development": (3.0, "day"),
        "batch": (12.0, "night"),
        "embeddings": (10.0, "always"),
        "evaluation": (6.0, "night"),
    },
}  # fmt: skip


def classes_of(lengths: Lengths, latency: str = "standard") -> dict[str, ServiceClass]:
    """Every class for one model, targets of the latency-critical ones scaled; by name.

    InputError for an unknown latency target.
    """
    if latency not in LATENCY_TARGETS:
        raise _scenario_error("latency target", latency, LATENCY_TARGETS)
    found = {}
    for name, spec in CLASSES.items():
        scale = LATENCY_TARGETS[latency] if name in LATENCY_CRITICAL else 1.0
        drawn = lengths
        if spec.prompt_tokens is not None and spec.output_tokens is not None:
            drawn = spread_lengths(spec.prompt_tokens, spec.output_tokens)
        ttft_s, tpot_s = spec.ttft_target_s * scale, spec.tpot_target_s * max(1.0, scale)
        found[name] = ServiceClass(name, drawn, ttft_s, tpot_s)
    return found


def demand_of(mix: str, classes: Mapping[str, ServiceClass], scale: float = 1.0) -> Demand:
    """A day of one mix, its rates times `scale`; InputError for an unknown mix."""
    if mix not in MIXES:
        raise _scenario_error("mix", mix, MIXES)
    rates = [scale * _hours(peak, when) for peak, when in MIXES[mix].values()]
    return Demand(tuple(classes[name] for name in MIXES[mix]), np.array(rates))


def is_latency_critical(mix: str) -> bool:
    """Whether a mix has a class whose targets `LATENCY_TARGETS` scale."""
    return any(name in LATENCY_CRITICAL for name in MIXES[mix])


def configurations_of(model: str) -> list[tuple[str, int]]:
    """One H100, one consumer card where the model fits it, and two and four of them where not."""
    name = find_model(model).model
    if _holds(name, 1):
        return [(H100, 1), (CONSUMER, 1)]
    return [(H100, 1), *((CONSUMER, count) for count in COUNTS if _holds(name, count))]


def offers_of(
    calibration: Calibration,
    model: str,
    prices: Mapping[str, float],
    region: str,
    *,
    available_frac: float = 1.0,
) -> list[Offer]:
    """What may be rented to serve a model; `available_frac` is the consumer cards'."""
    return [
        offer_of(
            calibration,
            find_model(model).model,
            configuration,
            prices,
            region,
            most=CARDS,
            available_frac=1.0 if configuration[0] == H100 else available_frac,
        )
        for configuration in configurations_of(model)
    ]


def curves_of(
    calibration: Calibration, model: str, prices: Mapping[str, float], requests: int, seed: int
) -> Curves:
    """Latency curves of every offer for a model under every class; prices change nothing."""
    offers = offers_of(calibration, model, prices, "World")
    classes = classes_of(serving_lengths(calibration, find_model(model)))
    return draw_curves(offers, list(classes.values()), requests, seed)


def curves_by_model(
    calibration: Calibration,
    models: Sequence[str],
    prices: Mapping[str, float],
    requests: int,
    seed: int,
) -> dict[str, Curves]:
    """Those curves for several models, by the name given."""
    return {model: curves_of(calibration, model, prices, requests, seed) for model in models}


def reprice_offer(offer: Offer, prices: Mapping[str, float]) -> Offer:
    """The same configuration at another price per GPU-hour."""
    return replace(offer, usd_per_h=offer.gpu_count * prices[find_gpu(offer.gpu).gpu])


def _hours(peak: float, when: str) -> Floats:
    day = daily_rates(peak)
    if when == "day":
        return day
    return np.full(day.size, peak) if when == "always" else np.roll(day, day.size // 2)


def _holds(model: str, count: int) -> bool:
    return kv_capacity_tokens(model, CONSUMER, count) > FEWEST_CACHE_TOKENS


def _scenario_error(what: str, got: str, known: Mapping[str, object]) -> InputError:
    return InputError(
        f"unknown {what}",
        got=repr(got),
        expected=f"one of {', '.join(known)}",
        where="hetinfer.fleet.scenarios",
        do="name one of these",
    )
