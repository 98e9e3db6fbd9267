"""Energy and carbon per million tokens of a machine: running it, and having it made.

A machine is `gpu_count` cards and the hosts they sit in. Symbols: X tokens per second while it
works, u the share of its life that it works, P power, PUE the site's overhead, E what making it
emits, L its lifetime. Results have the configurations' shape first and the samples last.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from hetinfer import metrics
from hetinfer.errors import InputError
from hetinfer.footprint.inputs import (
    Array,
    Range,
    find_operation,
    load_embodied_carbon,
    middle,
    sample_range,
)
from hetinfer.footprint.power import PowerAssumption, board_power, idle_power, pc_power
from hetinfer.hardware import find_gpu

Site = Literal["data-centre", "home"]
Holding = Literal["new", "owned", "idle"]
HOLDINGS: tuple[Holding, ...] = ("new", "owned", "idle")
HOSTS: dict[Site, str] = {"data-centre": "server-without-gpu", "home": "gaming-pc-without-gpu"}
SECONDS_PER_YEAR = 365.25 * 24 * 3600
G_PER_KG = 1000.0

Quantity = TypeVar("Quantity", Range, Array)


@dataclass(frozen=True)
class Machine(Generic[Quantity]):
    """Cards of one kind in hosts of one kind; each quantity known as a `Range`, or as its samples.

    Powers are of one board and of one host without its cards; `cards_per_host` is None where one
    host carries the whole configuration.
    """

    gpu: str
    site: Site
    cards_per_host: float | None
    board_w: Quantity
    idle_w: Quantity
    host_busy_w: Quantity
    host_idle_w: Quantity
    pue: Quantity
    card_kg: Quantity
    card_lifetime_years: Quantity
    host_kg: Quantity
    host_lifetime_years: Quantity
    utilisation_frac: Quantity


QUANTITIES = tuple(
    field.name for field in fields(Machine) if field.name not in {"gpu", "site", "cards_per_host"}
)


def known_machine(
    gpu: str, assumption: PowerAssumption = "measured draw", site: Site | None = None
) -> Machine[Range]:
    """What `data/reference` knows of a machine with that card, at its tier's usual site.

    Enterprise cards sit in a data centre, consumer cards in a PC at home, unless `site` says
    otherwise. Raises InputError for an unknown card or site, or a row that is missing.
    """
    card = find_gpu(gpu)
    where: Site = site or ("data-centre" if card.tier == "enterprise" else "home")
    if where not in HOSTS:
        raise _choice_error("unknown site", where, tuple(HOSTS))
    items = load_embodied_carbon()
    for item in (card.gpu, HOSTS[where]):
        if item not in items:
            raise _choice_error("no embodied carbon", item, tuple(items))
    together = None if where == "home" else middle(find_operation("cards_per_host", where).known)
    return Machine(
        gpu=card.gpu,
        site=where,
        cards_per_host=together,
        board_w=board_power(card.gpu, assumption),
        idle_w=idle_power(card.gpu),
        host_busy_w=_host_busy_power(card.gpu, where),
        host_idle_w=find_operation("host_idle_power", where).known,
        pue=find_operation("pue", where).known,
        card_kg=items[card.gpu].kg_co2e,
        card_lifetime_years=_lifetime(card.gpu),
        host_kg=items[HOSTS[where]].kg_co2e,
        host_lifetime_years=_lifetime(HOSTS[where]),
        utilisation_frac=find_operation("utilisation", "served workload").known,
    )


def sample_utilisation(n_samples: int, rng: np.random.Generator) -> Array:
    """Samples (n_samples,) of the share of time the workload keeps a machine busy."""
    return sample_range(find_operation("utilisation", "served workload").known, n_samples, rng)


def sample_machine(
    known: Machine[Range], utilisation_frac: Array, rng: np.random.Generator
) -> Machine[Array]:
    """Samples of every quantity of a machine, as many as `utilisation_frac` (n_samples,) has.

    The utilisation is the workload's, so machines that are compared share its samples. Raises
    InputError for a utilisation that is not above 0 and at most 1.
    """
    if not ((utilisation_frac > 0) & (utilisation_frac <= 1)).all():
        got = f"{utilisation_frac.min():g} to {utilisation_frac.max():g}"
        raise InputError(
            "utilisation not a share",
            got=got,
            expected="above 0 and at most 1",
            where="sample_machine",
            do="give the share of time that the machine is busy",
        )
    drawn = {
        name: sample_range(getattr(known, name), utilisation_frac.size, rng)
        for name in QUANTITIES
        if name != "utilisation_frac"
    }
    return _with(known, drawn | {"utilisation_frac": utilisation_frac})


def sample_machines(
    gpus: Sequence[str], n_samples: int, rng: np.random.Generator
) -> dict[str, Machine[Array]]:
    """Samples of each card's usual machine by its measured draws, at one shared utilisation."""
    utilisation_frac = sample_utilisation(n_samples, rng)
    return {gpu: sample_machine(known_machine(gpu), utilisation_frac, rng) for gpu in gpus}


def middle_machine(known: Machine[Range], **changed: float) -> Machine[Array]:
    """The machine as one sample: each quantity at its best figure or halfway, or as `changed`."""
    best = {name: middle(getattr(known, name)) for name in QUANTITIES}
    return _with(known, {name: np.array([value]) for name, value in (best | changed).items()})


def cards_only(machine: Machine[Array]) -> Machine[Array]:
    """The study's boundary: boards under load alone; no idle hours, host or site overhead."""
    nothing = np.zeros_like(machine.board_w)
    return replace(
        machine,
        idle_w=nothing,
        host_busy_w=nothing,
        host_idle_w=nothing,
        pue=np.ones_like(machine.board_w),
        host_kg=nothing,
    )


def kwh_per_mtoken(
    machine: Machine[Array], gpu_count: npt.ArrayLike, tokens_per_s: npt.ArrayLike
) -> Array:
    """Energy in kWh per million tokens, shape (..., n_samples), at X = `tokens_per_s`.

    PUE (P_busy + P_idle (1 - u) / u) / X, where P_busy and P_idle are the powers of all cards and
    hosts at work and waiting: tokens carry the hours that the service waits for them.
    """
    cards, hosts, rate = _counts(machine, gpu_count, tokens_per_s)
    busy_w = cards * machine.board_w + hosts * machine.host_busy_w
    idle_w = cards * machine.idle_w + hosts * machine.host_idle_w
    waiting = (1 - machine.utilisation_frac) / machine.utilisation_frac
    return np.asarray(1 / metrics.mtoken_per_kwh(machine.pue * (busy_w + idle_w * waiting), rate))


def embodied_g_per_mtoken(
    machine: Machine[Array],
    gpu_count: npt.ArrayLike,
    tokens_per_s: npt.ArrayLike,
    *,
    holding: Holding,
    wear_frac: float = 0.0,
) -> Array:
    """Embodied carbon in g CO2e per million tokens, shape (..., n_samples), X = `tokens_per_s`.

    `new`: made for this work, which carries all of it: E / (L u X). `owned`: made anyway, the work
    carries the share of life that it takes: E / (L X). `idle`: hours no one else would use; they
    carry `wear_frac` of the owned share, 0 if use wears nothing out, 1 if it does hour for hour.
    Raises InputError for another holding or a share outside 0 to 1.
    """
    if holding not in HOLDINGS:
        raise _choice_error("unknown holding", holding, HOLDINGS)
    if not 0 <= wear_frac <= 1:
        raise _choice_error("share of wear outside 0 to 1", str(wear_frac), ("0 to 1",))
    cards, hosts, rate = _counts(machine, gpu_count, tokens_per_s)
    card_g_per_s = machine.card_kg * G_PER_KG / (machine.card_lifetime_years * SECONDS_PER_YEAR)
    host_g_per_s = machine.host_kg * G_PER_KG / (machine.host_lifetime_years * SECONDS_PER_YEAR)
    owned = (cards * card_g_per_s + hosts * host_g_per_s) / rate * metrics.TOKENS_PER_MTOKEN
    if holding == "new":
        return np.asarray(owned / machine.utilisation_frac)
    return np.asarray(owned if holding == "owned" else owned * wear_frac)


def _host_busy_power(gpu: str, site: Site) -> Range:
    return pc_power(gpu) if site == "home" else find_operation("host_busy_power", site).known


def _lifetime(item: str) -> Range:
    best = load_embodied_carbon()[item].lifetime_years
    known = find_operation("lifetime", "all hardware").known
    return Range(min(known.low, best), max(known.high, best), best)


def _with(known: Machine[Range], arrays: dict[str, Array]) -> Machine[Array]:
    return Machine(gpu=known.gpu, site=known.site, cards_per_host=known.cards_per_host, **arrays)


def _counts(
    machine: Machine[Array], gpu_count: npt.ArrayLike, tokens_per_s: npt.ArrayLike
) -> tuple[Array, Array, Array]:
    cards = np.asarray(gpu_count, dtype=float)[..., np.newaxis]
    rate = np.asarray(tokens_per_s, dtype=float)[..., np.newaxis]
    if not (np.isfinite(rate).all() and (rate > 0).all() and (cards >= 1).all()):
        raise InputError(
            "nothing served",
            got=f"{cards.min():g} cards, {rate.min():g} tokens per s",
            expected="at least 1 card and a rate above 0",
            where="the configurations",
            do="leave out what serves nothing",
        )
    together = machine.cards_per_host
    return cards, np.ones_like(cards) if together is None else cards / together, rate


def _choice_error(what: str, got: str, known: tuple[str, ...]) -> InputError:
    return InputError(
        what, got=repr(got), expected=f"one of {', '.join(known)}", where="footprint", do="name one"
    )
