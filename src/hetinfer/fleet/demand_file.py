"""A demand in a TOML file: the model, its classes by hour, what may be rented, what is aimed at.

`notebooks/demand.toml` is an example with every key and its unit.
"""

import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hetinfer.errors import InputError
from hetinfer.fleet.demand import ServiceClass, check_class, daily_rates, spread_lengths
from hetinfer.fleet.offers import Offer, offer_of
from hetinfer.fleet.planning import OBJECTIVES, Aim, Demand, check_demand
from hetinfer.fleet.routing import policy_number
from hetinfer.hardware import check_price, find_gpu, find_model, load_prices
from hetinfer.simulation.fitted import Calibration

Floats = npt.NDArray[np.float64]
HOURS = 24
TOP_KEYS = {
    "model", "prices", "region", "objective", "usd_per_kg", "policy", "class", "configuration",
    "usd_per_gpu_h",
}  # fmt: skip
CLASS_KEYS = {
    "name", "prompt_tokens", "output_tokens", "ttft_target_s", "tpot_target_s", "attainment_frac",
    "requests_per_s", "daily_peak_requests_per_s",
}  # fmt: skip
CONFIGURATION_KEYS = {"gpu", "gpus", "most", "available_frac", "region"}


@dataclass(frozen=True)
class DemandFile:
    """What a demand file says, checked: the demand, the offers, the aim and the policy."""

    model: str
    demand: Demand
    offers: tuple[Offer, ...]
    aim: Aim
    policy: str


def load_demand(path: Path, calibration: Calibration) -> DemandFile:
    """Read and check one demand file; InputError names a key that is missing, unknown or wrong."""
    if not path.is_file():
        raise _file_error(path, "no demand file", "no file", "a TOML file")
    try:
        text = path.read_text()
    except UnicodeDecodeError as error:
        raise _file_error(path, "demand file unreadable", str(error), "TOML") from error
    return parse_demand(text, calibration, where=path)


def parse_demand(text: str, calibration: Calibration, *, where: object) -> DemandFile:
    """Check the text of a demand file; InputError as `load_demand`, and names `where`."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _file_error(where, "demand file unreadable", str(error), "TOML") from error
    _check_keys(content, TOP_KEYS, {"model", "class", "configuration"}, where)
    model = find_model(_text(content, "model", where)).model
    rows = [_class_of(row, where) for row in _tables(content, "class", where)]
    _check_names([service.name for service, _ in rows], where)
    policy = _text(content, "policy", where, "slo-aware")
    policy_number(policy)
    rates = np.array([rates for _, rates in rows])
    demand = check_demand(Demand(tuple(service for service, _ in rows), rates))
    offers = _offers_of(content, calibration, model, where)
    return DemandFile(model, demand, offers, _aim_of(content, where), policy)


def _class_of(row: Mapping[str, Any], file: object) -> tuple[ServiceClass, Floats]:
    needed = {"name", "prompt_tokens", "output_tokens"}
    where = f"{file}, class {row.get('name', 'without name')}"
    _check_keys(row, CLASS_KEYS, needed, where)
    if "ttft_target_s" not in row:
        raise _file_error(where, "class without target", "no ttft_target_s", "seconds")
    prompt_tokens, output_tokens = (
        _number(row, name, where, least=1) for name in ("prompt_tokens", "output_tokens")
    )
    service = ServiceClass(
        _text(row, "name", where),
        spread_lengths(prompt_tokens, output_tokens),
        _number(row, "ttft_target_s", where),
        _number(row, "tpot_target_s", where, default=np.inf),
        _number(row, "attainment_frac", where, default=ServiceClass.attainment_frac),
    )
    return check_class(service), _rates_of(row, where)


def _rates_of(row: Mapping[str, Any], where: object) -> Floats:
    ways = [name for name in ("requests_per_s", "daily_peak_requests_per_s") if name in row]
    if len(ways) != 1:
        expected = "one of requests_per_s and daily_peak_requests_per_s"
        raise _file_error(where, "rates", "both" if ways else "neither", expected)
    if ways == ["daily_peak_requests_per_s"]:
        return daily_rates(_number(row, ways[0], where, least=0), HOURS)
    given = row["requests_per_s"]
    rates = given if isinstance(given, list) else [given] * HOURS
    expected = f"one number of 0 or more, or {HOURS}, one an hour"
    wrong = [rate for rate in rates if not _is_number(rate) or rate < 0]
    if wrong:
        raise _file_error(where, "requests_per_s", repr(wrong[0]), expected)
    if len(rates) != HOURS:
        raise _file_error(where, "requests_per_s", f"{len(rates)} numbers", expected)
    return np.array(rates, float)


def _aim_of(content: Mapping[str, Any], where: object) -> Aim:
    objective = _text(content, "objective", where, "cost")
    if objective not in OBJECTIVES:
        raise _file_error(where, "objective", repr(objective), f"one of {', '.join(OBJECTIVES)}")
    usd_per_kg = _number(content, "usd_per_kg", where, default=0.0, least=0)
    return Aim(objective, usd_per_kg)


def _offers_of(
    content: Mapping[str, Any], calibration: Calibration, model: str, file: object
) -> tuple[Offer, ...]:
    prices = _prices_of(content, file)
    common = _text(content, "region", file, "EU27")
    offers = []
    for row in _tables(content, "configuration", file):
        where = f"{file}, configuration {row.get('gpu', 'without gpu')}"
        _check_keys(row, CONFIGURATION_KEYS, {"gpu"}, where)
        configuration = _text(row, "gpu", where), _count(row, "gpus", where, default=1, least=1)
        region = _text(row, "region", where, common)
        limits = _limits_of(row, where)
        offers.append(offer_of(calibration, model, configuration, prices, region, **limits))
    return tuple(offers)


def _prices_of(content: Mapping[str, Any], file: object) -> dict[str, float]:
    prices = load_prices(_text(content, "prices", file, "study-2025"))
    own = content.get("usd_per_gpu_h", {})
    if not isinstance(own, dict):
        raise _file_error(file, "usd_per_gpu_h", repr(own), "a table of GPU = USD per GPU-hour")
    for gpu in own:
        where = f"{file}, usd_per_gpu_h"
        price = _number(own, gpu, where)
        prices[find_gpu(gpu).gpu] = check_price(price, where=f"{where}, {gpu}")
    return prices


def _limits_of(row: Mapping[str, Any], where: object) -> dict[str, float]:
    most = _count(row, "most", where, default=Offer.most, least=0)
    available_frac = _number(row, "available_frac", where, default=Offer.available_frac)
    if not 0 < available_frac <= 1:
        raise _file_error(where, "available_frac", f"{available_frac:g}", "above 0, to 1")
    return {"most": most, "available_frac": available_frac}


def _check_names(names: Sequence[str], where: object) -> None:
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise _file_error(where, "class name", f"{twice[0]} twice", "a name of its own for each")


def _text(row: Mapping[str, Any], name: str, where: object, default: str = "") -> str:
    value = row.get(name, default)
    if not isinstance(value, str) or not value.strip():
        raise _file_error(where, name, repr(value), "a text")
    return value


def _number(
    row: Mapping[str, Any],
    name: str,
    where: object,
    *,
    default: float = 0.0,
    least: float | None = None,
) -> float:
    value = row.get(name, default)
    if name in row and not _is_number(value):
        raise _file_error(where, name, repr(value), "a finite number")
    if least is not None and value < least:
        raise _file_error(where, name, repr(value), f"{least:g} or more")
    return float(value)


def _count(row: Mapping[str, Any], name: str, where: object, *, default: int, least: int) -> int:
    value = row.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise _file_error(where, name, repr(value), f"a whole number of {least} or more")
    return value


def _is_number(value: object) -> bool:
    """Whether it is a number to reckon with: none that is endless, and no truth value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


def _tables(content: Mapping[str, Any], name: str, where: object) -> Sequence[Mapping[str, Any]]:
    rows = content[name]
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise _file_error(where, name, repr(rows), f"one table [[{name}]] or more")
    return rows


def _check_keys(row: Mapping[str, Any], known: set[str], needed: set[str], where: object) -> None:
    unknown, missing = sorted(set(row) - known), sorted(needed - set(row))
    if unknown or missing:
        got = f"unknown {', '.join(unknown)}" if unknown else f"no {', '.join(missing)}"
        raise _file_error(where, "keys", got, f"from {', '.join(sorted(known))}")


def _file_error(where: object, what: str, got: object, expected: str) -> InputError:
    return InputError(what, got=got, expected=expected, where=where, do="correct the file")
