"""Numbers to text: the only rounding in the project, and the file of every number it quotes."""

import json
import math
import numbers
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from pathlib import Path
from typing import Literal

from hetinfer.errors import InputError
from hetinfer.paths import write_atomically

Evidence = Literal["printed", "recorded", "measured", "simulated", "reference"]
EVIDENCE: tuple[Evidence, ...] = ("printed", "recorded", "measured", "simulated", "reference")
UNCERTAINTY_DIGITS = 2  # significant digits of an interval's half width, as metrology advises
EXACT = Context(prec=1000)  # more digits than any float has: rounding is by decimals alone
HALF_UNIT_SLACK = 1e-9  # a value exactly between two printed ones agrees with both
FLOAT_SLACK = 1e-12  # and binary fractions are not decimal ones


@dataclass(frozen=True)
class Value:
    """One number that some text quotes, and how (`text`); no interval, no `low` and `high`."""

    name: str
    value: float
    low: float | None
    high: float | None
    unit: str
    evidence: Evidence
    chapter: str
    text: str


def quote(  # noqa: PLR0913 - a number has this many facets, each named
    name: str,
    value: float,
    *,
    unit: str,
    evidence: Evidence,
    chapter: str,
    low: float | None = None,
    high: float | None = None,
    decimals: int | None = None,
) -> Value:
    """A named number with its text: exact if an int, else rounded by its interval or `decimals`.

    Raises InputError for a value outside its interval, or a number that is neither exact nor has a
    stated precision.
    """
    if evidence not in EVIDENCE:
        raise _value_error(name, evidence, f"one of {', '.join(EVIDENCE)}")
    if (low is None) != (high is None):
        raise _value_error(name, (low, high), "both ends of an interval, or none")
    if low is not None and high is not None and not low <= value <= high:
        raise _value_error(name, value, f"a value between {low} and {high}")
    text = number_text(value, low=low, high=high, decimals=decimals)
    value = int(value) if isinstance(value, numbers.Integral) else float(value)
    return Value(name, value, low, high, unit, evidence, chapter, text)


def number_text(
    value: float,
    *,
    low: float | None = None,
    high: float | None = None,
    decimals: int | None = None,
) -> str:
    """A number as text.

    An int is exact: printed in full, and asking for decimals is an error. An estimate is rounded so
    that its interval's half width keeps two significant digits, unless `decimals` says otherwise.
    Any other number needs `decimals`.
    """
    if isinstance(value, numbers.Integral):
        if decimals is not None:
            raise _value_error("exact number", value, "no rounding of an exact number")
        return f"{int(value):,}"
    if decimals is None and low is not None and high is not None and low < high:
        decimals = decimals_for((high - low) / 2)
    if decimals is None:
        raise _value_error("number", value, "an interval, or decimals that state its precision")
    return rounded(value, decimals)


def interval_text(low: float, high: float, *, decimals: int | None = None) -> str:
    """An interval as text, both ends rounded alike: by its own half width, or to `decimals`."""
    places = decimals_for((high - low) / 2) if decimals is None else decimals
    return f"{rounded(low, places)} to {rounded(high, places)}"


def estimate_text(
    estimate: float, low: float, high: float, confidence: float, *, decimals: int
) -> str:
    """An estimate with its interval and confidence as text; says so where there is no interval."""
    number = rounded(estimate, decimals)
    if math.isnan(low) or math.isnan(high):
        return f"{number} (no interval: too few models)"
    interval = interval_text(low, high, decimals=decimals)
    return f"{number} ({rounded(100 * confidence, 0)} %: {interval})"


def rounded(value: float, decimals: int) -> str:
    """Decimal rounding of the number's shortest text, half to even: 0.25 to one decimal is 0.2.

    Works on what a reader sees (`repr`), not on the binary fraction behind it, so 2.675 gives 2.68.
    Thousands are set off by commas; minus zero loses its sign.
    """
    if not math.isfinite(value):
        raise _value_error("number", value, "a finite number")
    quantum = Decimal(1).scaleb(-decimals)
    result = Decimal(repr(float(value))).quantize(quantum, ROUND_HALF_EVEN, EXACT)
    if result == 0:
        result = abs(result)
    return f"{result:,f}" if decimals > 0 else f"{int(result):,}"


def decimals_for(half_width: float) -> int:
    """Decimals at which an uncertainty keeps two significant digits, 0 at least."""
    if not 0 <= half_width < math.inf:
        raise _value_error("half width", half_width, "a finite number of 0 or more")
    if half_width == 0:
        return 0
    exponent = math.floor(math.log10(half_width))
    return max(0, UNCERTAINTY_DIGITS - 1 - exponent)


def printed_decimals(printed: str) -> int:
    """Decimals of a printed number: 3 for `0.111`, 0 for `62`."""
    try:
        exponent = Decimal(printed).as_tuple().exponent
    except InvalidOperation as error:
        raise _value_error("printed number", printed, "a decimal number") from error
    if not isinstance(exponent, int):
        raise _value_error("printed number", printed, "a decimal number")
    return -exponent


def printed_half_unit(printed: str) -> float:
    """Half a unit in the last printed place: 0.0005 for `0.111`, 0.5 for `62`."""
    return float(Decimal(5).scaleb(-printed_decimals(printed) - 1))


def printed_range(printed: str) -> tuple[float, float]:
    """The lowest and highest number that rounds to the printed text, a tie either way."""
    half = printed_half_unit(printed) * (1 + HALF_UNIT_SLACK)
    slack = abs(float(printed)) * FLOAT_SLACK
    return float(printed) - half - slack, float(printed) + half + slack


def agrees_as_printed(value: float, printed: str) -> bool:
    """Whether a recomputed value rounds to the printed text, a tie either way."""
    low, high = printed_range(printed)
    return low <= value <= high


def save_values(values: Iterable[Value], path: Path) -> None:
    """Write values as JSON, name -> value, low, high, unit, evidence, chapter, text; by name."""
    named: dict[str, dict[str, object]] = {}
    for value in values:
        if value.name in named:
            raise _value_error(value.name, "the name twice", "each name once")
        named[value.name] = {k: v for k, v in asdict(value).items() if k != "name"}
    write_atomically(
        path, json.dumps(dict(sorted(named.items())), indent=1, allow_nan=False) + "\n"
    )


def load_values(path: Path) -> dict[str, Value]:
    """The values that `save_values` wrote, by name."""
    if not path.is_file():
        raise InputError(
            "no values",
            got="no file",
            expected="a file that a chapter wrote",
            where=path,
            do="run make reproduce",
        )
    return {name: Value(name=name, **row) for name, row in json.loads(path.read_text()).items()}


def merge_values(paths: Iterable[Path], target: Path) -> int:
    """Merge chapters' value files into one, a name in two being an error; returns the count."""
    values = [value for path in paths for value in load_values(path).values()]
    save_values(values, target)
    return len(values)


def _value_error(what: str, got: object, expected: str) -> InputError:
    return InputError(
        what, got=got, expected=expected, where="values", do="state the number's precision"
    )
