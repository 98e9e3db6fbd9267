"""What a fleet is asked for: service classes with targets, and their requests over time."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from hetinfer.errors import InputError
from hetinfer.hardware import load_table
from hetinfer.workload import (
    Floats,
    Ints,
    Lengths,
    Requests,
    check_requests,
    draw_lengths,
    fresh_requests,
)

HOUR_S = 3600.0
TRACE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
DRAWN_LENGTHS = 2000  # of a class, that its requests are then drawn from
LENGTH_SEED = 7  # one population of lengths a class, whatever the run's seed
MOST_REQUESTS = 10_000_000  # of one workload: beyond, memory is what gives out
FIRST_INEXACT = 2.0**53  # from here on floats are not every whole number
DAY_TROUGH_FRAC = 0.2  # of the peak, that the quietest hour of a daily pattern keeps
DAY_PEAK_HOUR = 14.0


@dataclass(frozen=True)
class ServiceClass:
    """Requests that share lengths and targets: at least `attainment_frac` of them are to have their
    first token within `ttft_target_s` and a mean gap between tokens within `tpot_target_s`.
    """

    name: str
    lengths: Lengths
    ttft_target_s: float
    tpot_target_s: float = np.inf
    attainment_frac: float = 0.99


@dataclass(frozen=True)
class Workload:
    """Requests by arrival and the number of the class of each, (n_requests,)."""

    classes: tuple[ServiceClass, ...]
    requests: Requests
    service: Ints


def spread_lengths(
    prompt_tokens: float, output_tokens: float, *, spread: float = 0.8, longest: int = 4096
) -> Lengths:
    """Lognormal lengths of these means and log-deviation `spread`, none above `longest`.

    Prompt and answer are independent. An answer of one token is prefill alone: an embedding.
    InputError for a mean below one token.
    """
    if not (prompt_tokens >= 1 and output_tokens >= 1 and longest >= 2):
        raise _demand_error(
            "lengths", f"means {prompt_tokens:g} and {output_tokens:g}", "one token or more"
        )
    rng = np.random.default_rng(LENGTH_SEED)
    return Lengths(
        _lognormal_tokens(prompt_tokens, spread, longest, rng),
        _lognormal_tokens(output_tokens, spread, longest, rng),
    )


def check_class(service: ServiceClass) -> ServiceClass:
    """The class itself when its targets can be used; InputError otherwise."""
    for name in ("ttft_target_s", "tpot_target_s"):
        if not getattr(service, name) > 0:
            raise _demand_error(
                f"class {service.name}: {name}", getattr(service, name), "seconds above 0"
            )
    if not 0 < service.attainment_frac <= 1:
        got = service.attainment_frac
        raise _demand_error(f"class {service.name}: attainment_frac", got, "above 0, to 1")
    return service


def check_workload(workload: Workload) -> Workload:
    """The workload itself when it can be simulated; InputError otherwise."""
    check_requests(workload.requests)
    for service in workload.classes:
        check_class(service)
    numbers = workload.service
    known = numbers.shape == workload.requests.arrival_s.shape
    if not known or not ((numbers >= 0) & (numbers < len(workload.classes))).all():
        raise _demand_error("class numbers", numbers.shape, "one known class a request")
    return workload


def steady_workload(
    classes: Sequence[ServiceClass],
    rates_requests_per_s: Sequence[float],
    duration_s: float,
    rng: np.random.Generator,
    *,
    burstiness: float = 1.0,
) -> Workload:
    """Each class at its own rate for a while: Poisson, or burstier with a burstiness below 1.

    InputError for a negative rate, a burstiness not above 0, more than `MOST_REQUESTS`, or when no
    request arrives at all.
    """
    usable = duration_s > 0 and burstiness > 0 and min(rates_requests_per_s, default=-1.0) >= 0
    if not usable or not sum(rates_requests_per_s) * duration_s <= MOST_REQUESTS:
        rates = ", ".join(f"{rate:g}" for rate in rates_requests_per_s)
        got = f"rates {rates}, {duration_s:g} s, burstiness {burstiness:g}"
        expected = f"rates of 0 or more, a duration above 0, {MOST_REQUESTS:,} requests at most"
        raise _demand_error("arrivals", got, expected)
    times = [
        _renewals_s(rate, duration_s, burstiness, rng) if rate > 0 else np.zeros(0)
        for rate in rates_requests_per_s
    ]
    return _merged(classes, times, rng)


def hourly_workload(
    classes: Sequence[ServiceClass],
    rates_requests_per_s: npt.ArrayLike,
    rng: np.random.Generator,
    *,
    hour_s: float = HOUR_S,
) -> Workload:
    """Each class at a rate of its own in every hour: `rates` (n_classes, n_hours), Poisson within.

    A shorter `hour_s` squeezes a day into a shorter run at the same rates.
    """
    rates = np.asarray(rates_requests_per_s, float)
    if rates.ndim != 2 or rates.shape[0] != len(classes) or not (rates >= 0).all():
        raise _demand_error("hourly rates", rates.shape, f"({len(classes)}, hours), none negative")
    times = []
    for row in rates:
        counts = rng.poisson(row * hour_s)
        hours = np.repeat(np.arange(row.size), counts)
        times.append(np.sort((hours + rng.random(hours.size)) * hour_s))
    return _merged(classes, times, rng)


def daily_rates(peak_requests_per_s: float, hours: int = 24) -> Floats:
    """A day's rates: a cosine with its peak at two in the afternoon, a fifth of it at night."""
    phase = 2 * np.pi * ((np.arange(hours) + 0.5) * 24 / hours - DAY_PEAK_HOUR) / 24
    swing = (1 + np.cos(phase)) / 2
    return np.asarray(
        peak_requests_per_s * (DAY_TROUGH_FRAC + (1 - DAY_TROUGH_FRAC) * swing), float
    )


def load_trace(path: Path, service: ServiceClass) -> Workload:
    """Requests of one class from a trace: columns TIMESTAMP, ContextTokens, GeneratedTokens.

    The format of Azure's public traces of LLM inference. Times count from the first row.
    InputError for a column that is missing, a time that is none, or rows out of order.
    """
    table = load_table(path)
    missing = [name for name in TRACE_COLUMNS if name not in table]
    if missing:
        raise _trace_error("columns missing", ", ".join(missing), path)
    written = table["TIMESTAMP"].astype(str)
    times = pd.to_datetime(written, errors="coerce", format="ISO8601", utc=True)
    seconds = (times - times.iloc[0]).dt.total_seconds().to_numpy(float)
    unread = np.flatnonzero(np.isnan(seconds))
    if unread.size:
        raise _trace_error("time unreadable", f"row {unread[0] + 2}", path)
    falling = np.flatnonzero(np.diff(seconds) < 0)
    if falling.size:
        raise _trace_error("rows out of order", f"row {falling[0] + 3} before its previous", path)
    numbers = table[list(TRACE_COLUMNS[1:])].apply(pd.to_numeric, errors="coerce")
    lengths = numbers.to_numpy(float)
    whole = (lengths == np.round(lengths)) & (np.abs(lengths) < FIRST_INEXACT)
    unread = np.flatnonzero(~whole.all(axis=1))
    if unread.size:
        raise _trace_error("lengths unreadable", f"row {unread[0] + 2}", path)
    requests = fresh_requests(seconds, *lengths.T.astype(np.int64))
    return check_workload(Workload((service,), requests, np.zeros(seconds.size, np.int64)))


def _renewals_s(
    rate_requests_per_s: float, duration_s: float, burstiness: float, rng: np.random.Generator
) -> Floats:
    mean = rate_requests_per_s * duration_s
    expected = int(mean + 10 * np.sqrt(mean / min(1.0, burstiness)) + 20)
    gaps_s = rng.gamma(burstiness, 1.0 / (rate_requests_per_s * burstiness), expected)
    times_s = np.cumsum(gaps_s)
    return np.asarray(times_s[times_s < duration_s])


def _merged(
    classes: Sequence[ServiceClass], times: Sequence[Floats], rng: np.random.Generator
) -> Workload:
    lengths = [
        draw_lengths(service.lengths, own.size, rng)
        for service, own in zip(classes, times, strict=True)
    ]
    arrival_s = np.concatenate(times)
    if arrival_s.size == 0:
        raise _demand_error("no request", "none in the whole time", "at least one")
    order = np.argsort(arrival_s, kind="stable")
    service = np.repeat(np.arange(len(classes)), [own.size for own in times])
    requests = fresh_requests(
        arrival_s[order],
        np.concatenate([own.prompt_tokens for own in lengths])[order],
        np.concatenate([own.output_tokens for own in lengths])[order],
    )
    return Workload(tuple(classes), requests, service[order])


def _lognormal_tokens(mean: float, spread: float, longest: int, rng: np.random.Generator) -> Ints:
    drawn = rng.lognormal(np.log(mean) - spread**2 / 2, spread, DRAWN_LENGTHS)
    if mean == 1:
        return np.ones(DRAWN_LENGTHS, np.int64)
    return np.clip(np.round(drawn), 1, longest).astype(np.int64)


def _demand_error(what: str, got: object, expected: str) -> InputError:
    return InputError(what, got=got, expected=expected, where="the demand", do="correct it")


def _trace_error(what: str, got: str, path: Path) -> InputError:
    return InputError(
        what,
        got=got,
        expected=f"rows by time with {', '.join(TRACE_COLUMNS)}",
        where=path,
        do="sort and complete the trace",
    )
