"""The rule that turns cells of evidence into a verdict; no verdict is typed anywhere.

A statement is `reproduced` where every cell it speaks of bears it out, at its printed precision and
within replicate noise; `reproduced-under-condition` where one value, or one contiguous range, of
one factor that the row may vary holds only cells that do, and at least a fifth of the scope, unless
the statement's own words exclude it; `not-testable` where no run speaks to it; `not-reproduced`
otherwise. The widest such condition wins.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from hetinfer.errors import InputError
from hetinfer.hardware import load_text_table
from hetinfer.paths import data_dir
from hetinfer.values import printed_range

Verdict = Literal["reproduced", "reproduced-under-condition", "not-reproduced", "not-testable"]
NOISE_SIGMAS = 2.0  # a cell within two standard deviations of one run's noise agrees
SMALLEST_CONDITION_FRAC = 0.2  # a condition that holds for less of the scope is an anecdote
ORDERED_FACTORS = ("request rate", "GPU count", "percentile")
_WORDS = {
    "request rate": "at {} requests/s",
    "GPU count": "with {} GPUs",
    "percentile": "for P{}",
    "cost basis": "{}",
    "board power assumption": "with the H100 at {}",
    "card": "for {}",
    "traffic mix": "for the mix {}",
    "latency target": "with {} targets",
    "prices": "at prices of {}",
}


@dataclass(frozen=True)
class Claim:
    """One printed statement or check: a row of `data/published/claims.csv`, as text."""

    id: str
    kind: str
    topic: str
    where: str
    statement: str
    scope: str
    may_vary: tuple[str, ...]
    printed: str
    low: str
    high: str
    unit: str
    recompute: str
    must_hold_at: str
    threshold: str
    chapter: str


@dataclass(frozen=True)
class Finding:
    """What the data say of one claim.

    `cells` has one row a cell: columns named as the claim's factors, `cell` (its name), `value`,
    `holds`, and `in_scope` (False for what is only shown beside it). `any_cell` marks statements
    that one cell proves. `recomputed` is the headline as text, `bounds` the range behind it.
    `simulated` is what a simulation says beside the runs; the verdict does not look at it.
    """

    cells: pd.DataFrame
    recomputed: str
    bounds: tuple[float, float] | None = None
    evidence: str = "recorded"
    note: str = ""
    simulated: str = ""
    any_cell: bool = False


@dataclass(frozen=True)
class Judgement:
    """One claim with what the data say of it and the verdict that follows."""

    claim: Claim
    finding: Finding
    verdict: Verdict
    condition: str


@dataclass(frozen=True)
class Condition:
    """One factor restricted to a range of its values, all of whose `cells` bear a statement out."""

    factor: str
    levels: tuple[object, ...]
    cells: int


def load_claims() -> dict[str, Claim]:
    """The 39 rows of `data/published/claims.csv`, by id."""
    rows = load_text_table(data_dir("published") / "claims.csv").to_dict("records")
    return {
        row["id"]: Claim(**{**row, "may_vary": tuple(factors(row["may_vary"]))}) for row in rows
    }


def factors(text: str) -> list[str]:
    """The factors of a `may_vary` cell; an explanation in brackets is no part of a name."""
    return [part.split(" (")[0].strip() for part in text.split(";") if part.strip()]


def bears_out(
    values: npt.ArrayLike,
    *,
    low: str = "",
    high: str = "",
    noise_frac: float = 0.0,
) -> npt.NDArray[np.bool_]:
    """Which values lie between two printed bounds, half a printed unit and the noise allowed.

    `noise_frac` is the relative standard deviation of one value; `NOISE_SIGMAS` of it are allowed.
    An empty bound is none.
    """
    numbers = np.asarray(values, dtype=float)
    holds: npt.NDArray[np.bool_] = np.isfinite(numbers)
    slack = NOISE_SIGMAS * noise_frac * np.abs(np.where(holds, numbers, 0.0))
    if low:
        holds &= numbers >= printed_range(low)[0] - slack
    if high:
        holds &= numbers <= printed_range(high)[1] + slack
    return holds


def near(values: npt.ArrayLike, printed: str, *, noise_frac: float = 0.0) -> npt.NDArray[np.bool_]:
    """Which values round to the printed number, the noise allowed."""
    return bears_out(values, low=printed, high=printed, noise_frac=noise_frac)


def up_to(values: npt.ArrayLike, high: str, *, noise_frac: float = 0.0) -> npt.NDArray[np.bool_]:
    """Which values bear out "up to `high`": none above it, and one at least that reaches it."""
    reached = bool(bears_out(values, low=high, noise_frac=noise_frac).any())
    return bears_out(values, high=high, noise_frac=noise_frac) & reached


def judge(claim: Claim, finding: Finding) -> tuple[Verdict, str]:
    """The verdict, and its condition in words (for `not-reproduced`: what contradicts it).

    Why a statement is `not-testable` is said in the finding's note.
    """
    cells = finding.cells
    if not cells.empty:
        cells = cells[cells["in_scope"]]
    if cells.empty:
        return "not-testable", ""
    holds = cells["holds"]
    if holds.all() or (finding.any_cell and holds.any()):
        return "reproduced", ""
    found = list(conditions(claim, cells))
    if found:
        most = max(condition.cells for condition in found)
        words = [in_words(condition) for condition in found if condition.cells == most]
        return "reproduced-under-condition", f"{' or '.join(words)} ({most} of {len(cells)} cells)"
    against = cells.loc[~holds, "cell"].tolist()
    named = ", ".join(against[:3]) + (", ..." if len(against) > 3 else "")
    return "not-reproduced", f"{len(against)} of {len(cells)} cells contradict it: {named}"


def conditions(claim: Claim, cells: pd.DataFrame) -> Iterator[Condition]:
    """Every condition under which the statement holds, by the rule of this module."""
    for factor in claim.may_vary:
        if factor not in cells:
            continue
        for levels in _ranges(factor, cells[factor]):
            inside = cells[cells[factor].isin(levels)]
            enough = len(inside) >= SMALLEST_CONDITION_FRAC * len(cells)
            if enough and inside["holds"].all() and not _excluded(claim, factor, levels):
                yield Condition(factor, levels, len(inside))


def in_words(condition: Condition) -> str:
    """A condition as a reader says it: `at 1 to 8 requests/s`."""
    first, last = condition.levels[0], condition.levels[-1]
    one = f"{first:g}" if isinstance(first, float) else str(first)
    many = f"{last:g}" if isinstance(last, float) else str(last)
    span = one if len(condition.levels) == 1 else f"{one} to {many}"
    words = _WORDS[condition.factor].format(span)
    return words if span != "1" else words.replace("GPUs", "GPU").replace("requests/s", "request/s")


def _ranges(factor: str, column: pd.Series) -> Iterator[tuple[object, ...]]:
    if factor not in ORDERED_FACTORS or not pd.api.types.is_numeric_dtype(column):
        yield from ((level,) for level in column.unique())
        return
    levels = sorted(column.unique())
    for start in range(len(levels)):
        for stop in range(len(levels), start, -1):
            yield tuple(levels[start:stop])


def _excluded(claim: Claim, factor: str, levels: tuple[object, ...]) -> bool:
    if not claim.must_hold_at:
        return False
    named, _, level = claim.must_hold_at.partition("=")
    if named not in ORDERED_FACTORS:
        raise InputError(
            "unknown factor",
            got=named,
            expected=f"one of {', '.join(ORDERED_FACTORS)}",
            where=f"data/published/claims.csv, {claim.id}, must_hold_at",
            do="correct it",
        )
    return named == factor and float(level) not in cast(tuple[float, ...], levels)
