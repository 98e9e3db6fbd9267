"""Cards that their owners take back: when, with what notice, for how long."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hetinfer.errors import InputError
from hetinfer.fleet.dispatch import BACK, GONE, NOTICE


@dataclass(frozen=True)
class OwnerOutages:
    """What owners do, by time: arrays (n_events,) of seconds, engine, and kind of `dispatch`."""

    time_s: npt.NDArray[np.float64]
    engine: npt.NDArray[np.int64]
    kind: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ownership:
    """How owners lend: the share of time a card is there, how long it is away, and the notice.

    From the notice on a card gets no new request; when it goes, what it has not finished is lost.
    """

    available_frac: float
    away_s: float
    notice_s: float = 0.0


NO_OUTAGES = OwnerOutages(np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64))


def draw_outages(
    engines: npt.ArrayLike, ownership: Ownership, duration_s: float, rng: np.random.Generator
) -> OwnerOutages:
    """Times at which each of these engines goes and comes back: exponential stays and absences.

    With availability a and mean absence A, stays have mean a A / (1 - a); all cards are there at
    the start. InputError for an availability outside (0, 1], or a time that is not usable.
    """
    _check(ownership, duration_s)
    if ownership.available_frac == 1:
        return NO_OUTAGES
    stay_s = ownership.away_s * ownership.available_frac / (1 - ownership.available_frac)
    events: list[tuple[float, int, int]] = []
    for engine in np.asarray(engines, np.int64):
        gone_s = rng.exponential(stay_s)
        while gone_s < duration_s:
            back_s = gone_s + rng.exponential(ownership.away_s)
            events.append((max(0.0, gone_s - ownership.notice_s), int(engine), NOTICE))
            events.append((gone_s, int(engine), GONE))
            events.append((back_s, int(engine), BACK))
            gone_s = back_s + ownership.notice_s + rng.exponential(stay_s)
    return outages_of(events)


def outages_of(events: list[tuple[float, int, int]]) -> OwnerOutages:
    """Outages from (seconds, engine, kind), put in the order (time, engine, kind)."""
    ordered = sorted(events)
    return OwnerOutages(
        np.array([event[0] for event in ordered], float),
        np.array([event[1] for event in ordered], np.int64),
        np.array([event[2] for event in ordered], np.int64),
    )


def _check(ownership: Ownership, duration_s: float) -> None:
    usable = (
        0 < ownership.available_frac <= 1
        and ownership.away_s > 0
        and ownership.notice_s >= 0
        and duration_s > 0
    )
    if not usable:
        raise InputError(
            "ownership not usable",
            got=f"{ownership}, for {duration_s:g} s",
            expected="availability above 0, to 1; an absence above 0; a notice of 0 or more",
            where="draw_outages",
            do="correct it",
        )
