"""What footprints are computed from: rows of `data/reference`, each with range, year and grade."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from hetinfer.errors import InputError
from hetinfer.hardware import load_table
from hetinfer.paths import data_dir

Array = npt.NDArray[np.float64]
COVERAGE_FRAC = 0.95  # what an interval of samples covers, half of the rest on either side


@dataclass(frozen=True)
class Range:
    """What is known of one number: it lies in [low, high], likeliest at `best` if one is named."""

    low: float
    high: float
    best: float | None = None


@dataclass(frozen=True)
class PowerDraw:
    """One measured power in watts: of a card (`board`) or of the whole PC at the wall (`wall`).

    `power_w` is NaN on a row that says no measurement was found; `stand_in` then names the card
    whose draws, as shares of its limit, are taken instead.
    """

    gpu: str
    workload: str
    load: str
    power_w: float
    boundary: str
    grade: str
    year: int
    source: str
    stand_in: str


@dataclass(frozen=True)
class EmbodiedCarbon:
    """What making one item emits, in kg CO2e from cradle to gate, and how long the item serves."""

    item: str
    kg_co2e: Range
    lifetime_years: float
    year: int
    grade: str
    source: str


@dataclass(frozen=True)
class Operation:
    """How hardware is run: one quantity at one kind of site, with its range in `unit`."""

    quantity: str
    applies_to: str
    known: Range
    unit: str
    year: int
    grade: str
    source: str


@cache
def load_power_draws() -> tuple[PowerDraw, ...]:
    """Every row of `power_draws.csv`; InputError names a row with a negative power."""
    path = data_dir("reference") / "power_draws.csv"
    draws = tuple(PowerDraw(**row) for row in load_rows(path, {"stand_in": ""}))
    for number, draw in enumerate(draws, start=2):
        if draw.power_w < 0:
            raise row_error("negative power", draw.power_w, "watts of 0 or more", path, number)
    return draws


@cache
def load_embodied_carbon() -> dict[str, EmbodiedCarbon]:
    """Every item of `embodied_carbon.csv`, by name; without `low` and `high` a figure is exact.

    InputError names the row of a lifetime that is not above 0 or of a range out of order.
    """
    path = data_dir("reference") / "embodied_carbon.csv"
    found = {}
    for number, cells in enumerate(load_rows(path), start=2):
        if not cells["lifetime_years"] > 0:
            years = cells["lifetime_years"]
            raise row_error("lifetime not positive", years, "years above 0", path, number)
        known = read_range(cells.pop("kg_co2e"), cells.pop("low"), cells.pop("high"), path, number)
        found[cells["item"]] = EmbodiedCarbon(kg_co2e=known, **cells)
    return found


@cache
def load_operation() -> dict[tuple[str, str], Operation]:
    """Every row of `operation.csv`, by quantity and what it applies to.

    InputError names the row of a range out of order, or of a fraction that is 0 or above 1.
    """
    path = data_dir("reference") / "operation.csv"
    found = {}
    for number, cells in enumerate(load_rows(path), start=2):
        known = read_range(cells.pop("value"), cells.pop("low"), cells.pop("high"), path, number)
        if cells["unit"] == "fraction" and not 0 < known.low <= known.high <= 1:
            got = f"{known.low:g} to {known.high:g}"
            raise row_error(f"{cells['quantity']} not a share", got, "above 0, to 1", path, number)
        found[cells["quantity"], cells["applies_to"]] = Operation(known=known, **cells)
    return found


def load_rows(path: Path, empty: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """The rows of a table, to make records of; `empty` says what an empty text cell stands for."""
    table = load_table(path)
    for name, text in (empty or {}).items():
        table[name] = table[name].astype(object).where(table[name].notna(), text)
    return [{str(name): cell for name, cell in row.items()} for row in table.to_dict("records")]


def find_operation(quantity: str, applies_to: str) -> Operation:
    """The row of `operation.csv` for that quantity and site; InputError if there is none."""
    rows = load_operation()
    if (quantity, applies_to) not in rows:
        known = ", ".join(sorted(site for name, site in rows if name == quantity)) or "none"
        raise InputError(
            f"no {quantity}",
            got=f"none for {applies_to!r}",
            expected=f"a row (there is {known})",
            where="data/reference/operation.csv",
            do="add the row there, with its source",
        )
    return rows[quantity, applies_to]


def read_range(best: float, low: float, high: float, path: Path, number: int) -> Range:
    """A range from a row's three cells: any may be empty, but not all; InputError names the row."""
    cells = [float(cell) for cell in (low, best, high) if not pd.isna(cell)]
    if not cells or cells != sorted(cells) or cells[0] < 0:
        raise row_error("range out of order", cells, "0 <= low <= value <= high", path, number)
    return Range(cells[0], cells[-1], None if pd.isna(best) else float(best))


def sample_range(known: Range, n_samples: int, rng: np.random.Generator) -> Array:
    """Samples (n_samples,) of a number of which only a range is known.

    Triangular with its peak at `best`; uniform where no best figure is named; constant where the
    range is one number (one draw is still taken, so that other inputs' samples stay the same).
    """
    uniform = rng.random(n_samples)
    width = known.high - known.low
    if known.best is None or width == 0:
        return known.low + width * uniform
    peak = (known.best - known.low) / width
    rising = np.sqrt(uniform * peak)
    falling = 1 - np.sqrt((1 - uniform) * (1 - peak))
    return np.asarray(known.low + width * np.where(uniform < peak, rising, falling))


def middle(known: Range) -> float:
    """The number to use where one is needed: the best figure, or halfway between the ends."""
    return (known.low + known.high) / 2 if known.best is None else known.best


def interval(samples: Array) -> tuple[Array, Array, Array]:
    """Low, median and high over the last axis: the central `COVERAGE_FRAC` of the samples."""
    tail = (1 - COVERAGE_FRAC) / 2
    low, median, high = np.quantile(samples, [tail, 0.5, 1 - tail], axis=-1)
    return low, median, high


def row_error(what: str, got: object, expected: str, path: Path, number: int) -> InputError:
    """The error for one row of a table, by its line in the file."""
    return InputError(
        what, got=got, expected=expected, where=f"{path}, line {number}", do="correct that row"
    )
