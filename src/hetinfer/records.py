"""JSON records that other programs wrote: read whole, and their fields only as what they must be.

A field that is null counts as not there. Every error names the record's file.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hetinfer.errors import InputError

CORRECT = "correct or remove that file"
SHOWN = 60  # characters of a wrong value that an error shows

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Record:
    """One JSON object of a file; `where` names the file, and the record where it has several."""

    fields: Mapping[str, object]
    path: Path
    where: str


def load_records(path: Path) -> Iterator[Record]:
    """Each JSON object of a file, with any white space between them: JSON lines, or one by one.

    Raises InputError for a file that cannot be read to its end, or that holds anything else.
    """
    try:
        text = path.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, str(error)) from error
    decoder, position, number = json.JSONDecoder(), 0, 0
    while position < len(text) or number == 0:
        try:
            fields, end = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            got = f"{error.msg} (line {error.lineno}, column {error.colno})"
            raise _unreadable(path, got) from error
        except (RecursionError, ValueError) as error:
            raise _unreadable(path, str(error)) from error
        number += 1
        where = str(path) if number == 1 and end == len(text) else f"{path}, record {number}"
        if not isinstance(fields, dict):
            raise InputError(
                "no record",
                got=f"a JSON {type(fields).__name__}",
                expected="JSON objects, as a program saves its results",
                where=path,
                do="remove that file, or skip it with --skip-bad",
            )
        yield Record(fields, path, where)
        position = end
        while position < len(text) and text[position].isspace():
            position += 1


def has(record: Record, name: str) -> bool:
    """Whether the record has the field, and it is not null."""
    return record.fields.get(name) is not None


def number(record: Record, *names: str, otherwise: float = math.nan) -> float:
    """The first of these fields that the record has, as a number; also of text, such as `inf`."""
    said = [name for name in names if has(record, name)]
    return as_number(record, said[0], record.fields[said[0]]) if said else otherwise


def whole(record: Record, name: str) -> int:
    """A field that must be there and a whole number."""
    return as_whole(record, name, record.fields.get(name))


def text(record: Record, name: str) -> str:
    """A field as one line of text, "" where the record has none."""
    value = record.fields.get(name)
    line = "" if value is None else str(value)
    if isinstance(value, list | dict | bool) or not line.isprintable():
        raise bad_field(record, name, repr(value)[:SHOWN], "one line of text")
    return line


def entries(record: Record, name: str, count: int | None = None) -> list[object]:
    """A field that is a list; `count` nulls, if that is given, for one that is not there."""
    values = record.fields.get(name)
    if values is None and count is not None:
        return [None] * count
    if not isinstance(values, list):
        raise bad_field(record, name, f"a JSON {type(values).__name__}", "a list")
    if count is not None and len(values) != count:
        raise bad_field(record, name, f"{len(values)} entries", f"{count}, one for each request")
    return values


def floats(record: Record, name: str, count: int) -> Floats:
    """A list of `count` numbers, shape (count,), none negative; NaN for one that is not there."""
    if not has(record, name):
        return np.full(count, np.nan)
    try:
        values = np.asarray(entries(record, name, count), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise bad_field(record, name, str(error), "a list of numbers") from error
    return not_negative(record, name, values)


def not_negative(record: Record, name: str, values: Floats) -> Floats:
    """The values themselves, shape (n,), when each is a finite number of 0 or more."""
    wrong = values[~((values >= 0) & np.isfinite(values))]
    if values.ndim != 1 or wrong.size:
        got = f"{wrong[0]:g}" if wrong.size else "lists in a list"
        raise bad_field(record, name, got, "finite numbers of 0 or more")
    return values


def as_number(record: Record, name: str, value: object) -> float:
    """A value as a number; InputError names it `name`."""
    try:
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            return float(value)
    except (ValueError, OverflowError):
        pass
    raise bad_field(record, name, repr(value)[:SHOWN], "a number")


def as_whole(record: Record, name: str, value: object) -> int:
    """A value as a whole number; InputError names it `name`."""
    result = as_number(record, name, value)
    if not result.is_integer():
        raise bad_field(record, name, repr(value)[:SHOWN], "a whole number")
    return int(result)


def bad_field(record: Record, what: str, got: str, expected: str, do: str = CORRECT) -> InputError:
    """The error for a field that cannot be used."""
    return InputError(what, got=got, expected=expected, where=record.where, do=do)


def _unreadable(path: Path, got: str) -> InputError:
    return InputError(
        "unreadable file",
        got=got,
        expected="whole JSON objects",
        where=path,
        do="fetch that file again, or skip it with --skip-bad",
    )
