"""A build against the expected one: values, claims, tables, figures, and the data's own hashes.

Two of the simulator's fits are made anew as well, to see that they come from these runs.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from hetinfer.errors import InputError
from hetinfer.paths import data_dir, root_dir, sha256_of, write_atomically
from hetinfer.simulation.fitted import load_calibrations, refit_difference_frac
from hetinfer.values import Value, load_values

EXACT_TOLERANCE_FRAC = 1e-9  # recomputed from tables: only the last bits may differ
FITTED_TOLERANCE_FRAC = 1e-4  # an optimiser's answer, which depends on its library's version
SIMULATED_TOLERANCE_FRAC = 1e-3
TABLE_TOLERANCE_FRAC = 1e-4
REFIT_TOLERANCE_FRAC = 0.01  # of a fit's cost: where the optimiser stops, which is flat
REFITTED = (  # one configuration of each card; together a second or two
    ("deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", "h100-pcie", 1),
    ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "rtx-4090", 1),
)
FIGURES = "figures.sha256"
ANSWER = Path("paper") / "answer.svg"  # what README shows: the figure of that name
Configuration = tuple[str, str, int]


@dataclass(frozen=True)
class Report:
    """What was compared and what differs, one line each; figures that differ are no failure."""

    values: int
    claims: int
    tables: int
    data_files: int
    refits: int
    differences: tuple[str, ...]
    figures_differing: tuple[str, ...]
    figures: int

    @property
    def agrees(self) -> bool:
        """Whether everything but figures' bytes is as expected."""
        return not self.differences


def tolerance_frac(value: Value) -> float:
    """How far a value may be from the expected one, relative: by its evidence, and if estimated."""
    if value.evidence == "simulated":
        return SIMULATED_TOLERANCE_FRAC
    return EXACT_TOLERANCE_FRAC if value.low is None else FITTED_TOLERANCE_FRAC


def verify(build_dir: Path, *, refitted: Sequence[Configuration] = REFITTED) -> Report:
    """Compare a build with `data/expected/`, and fits made anew with `data/fitted/`.

    InputError where one of them is not there.
    """
    expected_dir = data_dir("expected")
    for folder in (build_dir, expected_dir):
        if not (folder / "values.json").is_file():
            raise InputError(
                "nothing to compare",
                got="no values.json",
                expected="a finished build and its expected values",
                where=folder,
                do="run make reproduce",
            )
    expected, found = (load_values(folder / "values.json") for folder in (expected_dir, build_dir))
    tables = sorted((expected_dir / "tables").glob("*.csv"))
    figures = dict(_figure_hashes(expected_dir))
    hashes = _checksums(root_dir() / "data" / "SHA256SUMS")
    claims = pd.read_csv(expected_dir / "claims.csv", dtype=str, keep_default_na=False)
    differences = [
        *_value_differences(expected, found),
        *_claim_differences(claims, build_dir / "claims.csv"),
        *(line for table in tables for line in _table_differences(table, build_dir)),
        *_hash_differences(hashes),
        *refit_differences(refitted),
    ]
    differing = [
        name
        for name, digest in figures.items()
        if not (build_dir / "figures" / name).is_file()
        or sha256_of(build_dir / "figures" / name) != digest
    ]
    return Report(
        values=len(expected),
        claims=len(claims),
        tables=len(tables),
        data_files=len(hashes),
        refits=len(refitted),
        differences=tuple(differences),
        figures_differing=tuple(differing),
        figures=len(figures),
    )


def refit_differences(configurations: Sequence[Configuration]) -> Iterator[str]:
    """A line for each configuration whose fit, made anew, costs another sum than the saved one.

    Compared with the reconstruction of smaller cost, within `REFIT_TOLERANCE_FRAC`. InputError
    for a configuration that has no saved fit.
    """
    if not configurations:
        return
    best = load_calibrations()[0]
    saved = {(fit.model, fit.gpu, fit.gpu_count): fit for fit in best.fits}
    for keys in configurations:
        if keys not in saved:
            raise InputError(
                "nothing to refit", got=keys, expected="a configuration with a saved fit",
                where=data_dir("fitted"), do="run make calibrate",
            )  # fmt: skip
        difference = refit_difference_frac(saved[keys], best.lengths[keys[0]])
        if difference > REFIT_TOLERANCE_FRAC:
            name = f"{keys[0]} on {keys[2]}x {keys[1]}"
            tolerance = f"expected within {REFIT_TOLERANCE_FRAC:g}"
            yield f"fit {name}: its cost differs by {difference:.2g}, {tolerance}"


def report_text(report: Report) -> str:
    """The comparison as a reader wants it: counts, then each difference."""
    by_kind = {
        kind: sum(line.startswith(kind) for line in report.differences)
        for kind in ("value", "claim", "table", "data", "fit")
    }
    counts = (
        ("values", report.values, by_kind["value"]),
        ("claims", report.claims, by_kind["claim"]),
        ("tables", report.tables, by_kind["table"]),
        ("data files", report.data_files, by_kind["data"]),
        ("fits made anew", report.refits, by_kind["fit"]),
    )
    lines = [f"{total - bad} of {total} {name} agree" for name, total, bad in counts]
    lines += report.differences
    same = report.figures - len(report.figures_differing)
    lines.append(f"{same} of {report.figures} figures are identical to the byte")
    lines += [f"figure {name}: other bytes (no failure)" for name in report.figures_differing]
    lines.append("verified" if report.agrees else "NOT verified")
    return "\n".join(lines)


def write_expected(build_dir: Path) -> str:
    """Make a build the expected one: values, claims, tables, hashes of figures, README's figure."""
    expected_dir = data_dir("expected")
    for name in ("values.json", "claims.csv"):
        write_atomically(expected_dir / name, (build_dir / name).read_bytes())
    tables = sorted((build_dir / "tables").glob("*.csv"))
    for stale in (expected_dir / "tables").glob("*.csv"):
        stale.unlink()
    for table in tables:
        write_atomically(expected_dir / "tables" / table.name, table.read_bytes())
    figures = sorted((build_dir / "figures").glob("*.svg"))
    lines = [f"{sha256_of(figure)}  {figure.name}\n" for figure in figures]
    write_atomically(expected_dir / FIGURES, "".join(lines))
    answer = (build_dir / "figures" / ANSWER.name).read_bytes()
    write_atomically(root_dir() / ANSWER, answer)
    return (
        f"{expected_dir}: values, claims, {len(tables)} tables, hashes of {len(figures)} figures; "
        f"{ANSWER}"
    )


def write_checksums() -> str:
    """Write `data/SHA256SUMS` over the inputs: recorded, published and reference tables."""
    folders = ("recorded", "published", "reference")
    files = sorted(path for name in folders for path in data_dir(name).glob("*.csv"))
    target = root_dir() / "data" / "SHA256SUMS"
    lines = [f"{sha256_of(path)}  {path.relative_to(target.parent)}\n" for path in files]
    write_atomically(target, "".join(lines))
    return f"{target}: {len(files)} files"


def _value_differences(expected: dict[str, Value], found: dict[str, Value]) -> Iterator[str]:
    for name, value in expected.items():
        if name not in found:
            yield f"value {name}: missing, expected {value.value}"
            continue
        tolerance = tolerance_frac(value)
        for part in ("value", "low", "high"):
            want, got = getattr(value, part), getattr(found[name], part)
            same = want is got or (
                want is not None and got is not None and math.isclose(want, got, rel_tol=tolerance)
            )
            if not same:
                yield f"value {name}: {part} {got}, expected {want} within {tolerance:g} of it"
    for name in found.keys() - expected.keys():
        yield f"value {name}: not expected"


def _claim_differences(expected: pd.DataFrame, path: Path) -> Iterator[str]:
    found = pd.read_csv(path, dtype=str, keep_default_na=False).set_index("id")
    for row in expected.to_dict("records"):
        for column in ("recomputed", "verdict", "condition"):
            got = found[column].get(row["id"], "missing")
            if got != row[column]:
                yield f"claim {row['id']}: {column} {got!r}, expected {row[column]!r}"


def _table_differences(expected: Path, build_dir: Path) -> Iterator[str]:
    path = build_dir / "tables" / expected.name
    if not path.is_file():
        yield f"table {expected.name}: missing"
        return
    want, got = pd.read_csv(expected), pd.read_csv(path)
    if list(want) != list(got) or len(want) != len(got):
        yield f"table {expected.name}: other columns or rows"
        return
    for column in want:
        numeric = pd.api.types.is_numeric_dtype(want[column])
        same = (
            np.isclose(
                got[column].astype(float),
                want[column].astype(float),
                rtol=TABLE_TOLERANCE_FRAC,
                equal_nan=True,
            )
            if numeric
            else (got[column].fillna("") == want[column].fillna(""))
        )
        if not np.all(same):
            row = int(np.flatnonzero(~np.asarray(same))[0])
            differing = f"{got[column][row]!r}, expected {want[column][row]!r}"
            yield f"table {expected.name}: row {row}, {column}: {differing}"


def _checksums(path: Path) -> dict[str, str]:
    lines = path.read_text().splitlines()
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}


def _figure_hashes(expected_dir: Path) -> dict[str, str]:
    return _checksums(expected_dir / FIGURES)


def _hash_differences(hashes: dict[str, str]) -> Iterator[str]:
    for name, digest in hashes.items():
        path = root_dir() / "data" / name
        if not path.is_file():
            yield f"data {name}: missing"
        elif sha256_of(path) != digest:
            yield f"data {name}: changed; run make checksums if that is meant"
