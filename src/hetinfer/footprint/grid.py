"""Carbon intensity of electricity: yearly averages by region, and a user's hourly profiles."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from hetinfer.errors import InputError
from hetinfer.footprint.inputs import Array, load_rows, row_error
from hetinfer.hardware import load_table
from hetinfer.paths import data_dir

HOURLY_COLUMNS = ["region", "start_utc", "intensity", "unit", "source"]
HOURLY_UNIT = "g_co2e_per_kwh"
HIGHEST_G_PER_KWH = 3000.0  # above any grid, even of lignite alone: such a table is in other units


@dataclass(frozen=True)
class GridIntensity:
    """Average carbon intensity of one region's electricity in one year, in g CO2e per kWh."""

    region: str
    g_co2_per_kwh: float
    year: int
    grade: str
    source: str


@dataclass(frozen=True)
class HourlyIntensity:
    """Carbon intensity hour by hour: `g_co2_per_kwh` (n_hours,), its first hour at `start_utc`."""

    region: str
    start_utc: str
    g_co2_per_kwh: Array
    source: str


@cache
def load_grid() -> dict[str, GridIntensity]:
    """Every region of `grid_intensity.csv`, by its code, cleanest first.

    InputError names the row of an intensity that no grid can have.
    """
    path = data_dir("reference") / "grid_intensity.csv"
    grid = [GridIntensity(**row) for row in load_rows(path)]
    for number, row in enumerate(grid, start=2):
        _check_intensity(row.g_co2_per_kwh, path, number)
    return {row.region: row for row in sorted(grid, key=lambda row: row.g_co2_per_kwh)}


def find_grid(region: str) -> GridIntensity:
    """The region's yearly average; InputError for an unknown region lists the known."""
    grid = load_grid()
    known = {name.lower(): record for name, record in grid.items()}
    if region.lower() not in known:
        raise InputError(
            "unknown region",
            got=repr(region),
            expected=f"one of {', '.join(sorted(grid))}",
            where="data/reference/grid_intensity.csv",
            do="name one of these, or add a row with its source there",
        )
    return known[region.lower()]


def load_hourly_intensity(path: Path) -> HourlyIntensity:
    """An hourly profile from a CSV table with the columns `HOURLY_COLUMNS`, one region a file.

    The format is described in `data/reference/README.md`. InputError names the row of a gap, a
    repeated hour, a wrong unit, or an intensity that no grid can have.
    """
    table = load_table(path)
    missing = [name for name in HOURLY_COLUMNS if name not in table]
    if missing:
        raise row_error("column missing", missing[0], ", ".join(HOURLY_COLUMNS), path, 1)
    cells = table[["region", "unit", "intensity"]].itertuples(index=False, name=None)
    for number, (region, unit, intensity) in enumerate(cells, start=2):
        if unit != HOURLY_UNIT:
            raise row_error("wrong unit", repr(unit), repr(HOURLY_UNIT), path, number)
        if region != table["region"].iloc[0]:
            raise row_error("second region", region, "one region a file", path, number)
        _check_intensity(intensity, path, number)
    first = _check_hours(table["start_utc"], path)
    profile = table["intensity"].to_numpy(dtype=float)
    return HourlyIntensity(str(table["region"][0]), first, profile, str(table["source"][0]))


def first_hours(profile: HourlyIntensity, hours: int) -> Array:
    """The profile's first `hours` hours (hours,); InputError where it is shorter."""
    if not 1 <= hours <= profile.g_co2_per_kwh.size:
        raise InputError(
            "profile too short",
            got=f"{profile.g_co2_per_kwh.size} hours",
            expected=f"at least {hours}",
            where=f"the hourly profile of {profile.region}",
            do="give a longer profile or plan fewer hours",
        )
    return profile.g_co2_per_kwh[:hours]


def constant_profile(region: str, hours: int) -> Array:
    """A region's yearly average in every hour (hours,), where no hourly profile is at hand."""
    return np.full(hours, find_grid(region).g_co2_per_kwh)


def _check_intensity(g_per_kwh: object, path: Path, number: int) -> None:
    number_like = isinstance(g_per_kwh, int | float)
    if not (number_like and 0 <= float(str(g_per_kwh)) <= HIGHEST_G_PER_KWH):
        expected = f"g CO2e per kWh from 0 to {HIGHEST_G_PER_KWH:g}"
        raise row_error("impossible intensity", g_per_kwh, expected, path, number)


def _check_hours(starts: "pd.Series[str]", path: Path) -> str:
    parsed = pd.to_datetime(starts, utc=True, format="ISO8601", errors="coerce")
    for number, (text, start) in enumerate(zip(starts, parsed, strict=True), start=2):
        if pd.isna(start):
            raise row_error("not a time", repr(text), "ISO 8601 in UTC", path, number)
    steps = parsed.diff().iloc[1:]
    for number, (step, start) in enumerate(zip(steps, parsed.iloc[1:], strict=True), start=3):
        if step != pd.Timedelta(hours=1):
            what = "gap in the hours" if step > pd.Timedelta(hours=1) else "hours out of order"
            raise row_error(what, start.isoformat(), "one hour after the row before", path, number)
    return str(parsed.iloc[0].isoformat())
