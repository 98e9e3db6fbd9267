"""A demand in a TOML file: the model, its classes by hour, what may be rented, what is aimed at.

`notebooks/demand.toml` is an example with every key and its unit.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from hetinfer.errors import InputError
from hetinfer.fleet.demand import ServiceClass, check_class, daily_rates, spread_lengths
from hetinfer.fleet.offers import Offer, offer_of
from hetinfer.fleet.planning import OBJECTIVES, Aim, Demand, Objective, check_demand
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
        content = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _file_error(path, "demand file unreadable", str(error), "TOML") from error
    _check_keys(content, TOP_KEYS, {"model", "class", "configuration"}, path)
    model = find_model(content["model"]).model
    rows = [_class_of(row, path) for row in content["class"]]
    rates = np.array([rates for _, rates in rows])
    objective = content.get("objective", "cost")
    if objective not in OBJECTIVES:
        raise _file_error(path, "objective", repr(objective), f"one of {', '.join(OBJECTIVES)}")
    aim = Aim(cast(Objective, objective), float(content.get("usd_per_kg", 0.0)))
    policy = content.get("policy", "slo-aware")
    policy_number(policy)
    demand = check_demand(Demand(tuple(service for service, _ in rows), rates))
    return DemandFile(model, demand, _offers_of(content, calibration, model, path), aim, policy)


def _class_of(row: Mapping[str, Any], path: Path) -> tuple[ServiceClass, Floats]:
    needed = {"name", "prompt_tokens", "output_tokens"}
    where = f"{path}, class {row.get('name', 'without name')}"
    _check_keys(row, CLASS_KEYS, needed, where)
    if "ttft_target_s" not in row:
        raise _file_error(where, "class without target", "no ttft_target_s", "seconds")
    service = ServiceClass(
        str(row["name"]),
        spread_lengths(_number(row, "prompt_tokens", where), _number(row, "output_tokens", where)),
        _number(row, "ttft_target_s", where),
        _number(row, "tpot_target_s", where, float("inf")),
        _number(row, "attainment_frac", where, ServiceClass.attainment_frac),
    )
    return check_class(service), _rates_of(row, where)


def _rates_of(row: Mapping[str, Any], where: object) -> Floats:
    if ("requests_per_s" in row) == ("daily_peak_requests_per_s" in row):
        expected = "one of requests_per_s and daily_peak_requests_per_s"
        raise _file_error(where, "rates", "both or none", expected)
    if "daily_peak_requests_per_s" in row:
        return daily_rates(_number(row, "daily_peak_requests_per_s", where), HOURS)
    given = row["requests_per_s"]
    rates = given if isinstance(given, list) else [given] * HOURS
    numbers = all(isinstance(rate, int | float) and rate >= 0 for rate in rates)
    if len(rates) != HOURS or not numbers:
        expected = f"one number of 0 or more, or {HOURS}, one an hour"
        raise _file_error(where, "requests_per_s", given, expected)
    return np.array(rates, float)


def _offers_of(
    content: Mapping[str, Any], calibration: Calibration, model: str, path: Path
) -> tuple[Offer, ...]:
    prices = load_prices(content.get("prices", "study-2025"))
    for gpu, price in content.get("usd_per_gpu_h", {}).items():
        prices[find_gpu(gpu).gpu] = check_price(float(price), where=f"{path}, {gpu}")
    offers = []
    for row in content["configuration"]:
        where = f"{path}, configuration {row.get('gpu', 'without gpu')}"
        _check_keys(row, CONFIGURATION_KEYS, {"gpu"}, where)
        limits = {name: row[name] for name in ("most", "available_frac") if name in row}
        if limits.get("most", 0) < 0 or not 0 < limits.get("available_frac", 1) <= 1:
            expected = "most of 0 or more, available_frac above 0, to 1"
            raise _file_error(where, "limits", limits, expected)
        region = row.get("region", content.get("region", "EU27"))
        count = int(row.get("gpus", 1))
        offers.append(offer_of(calibration, model, (row["gpu"], count), prices, region, **limits))
    return tuple(offers)


def _number(row: Mapping[str, Any], name: str, where: object, default: float = 0.0) -> float:
    value = row.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _file_error(where, name, repr(value), "a number")
    return float(value)


def _check_keys(row: Mapping[str, Any], known: set[str], needed: set[str], where: object) -> None:
    unknown, missing = sorted(set(row) - known), sorted(needed - set(row))
    if unknown or missing:
        got = f"unknown {', '.join(unknown)}" if unknown else f"no {', '.join(missing)}"
        raise _file_error(where, "keys", got, f"from {', '.join(sorted(known))}")


def _file_error(where: object, what: str, got: object, expected: str) -> InputError:
    return InputError(what, got=got, expected=expected, where=where, do="correct the file")
