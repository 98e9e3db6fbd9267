"""The study's result files: whether a download of them is what the recorded runs come from."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from hetinfer.errors import InputError
from hetinfer.hardware import load_table
from hetinfer.paths import data_dir, sha256_of
from hetinfer.records import load_records
from hetinfer.runs import frame, load_recorded
from hetinfer.values import number_text
from hetinfer.vllm_results import Stated, load_results


@dataclass(frozen=True)
class Difference:
    """One thing that is not as recorded: in which file or run, what, as found and as recorded."""

    where: str
    what: str
    got: str
    expected: str


@dataclass(frozen=True)
class SourceCheck:
    """What a download was compared with, and all that differs; nothing does when it is whole."""

    files: int
    rows: int
    missing: tuple[str, ...]
    changed: tuple[Difference, ...]
    differing: tuple[Difference, ...]

    @property
    def agrees(self) -> bool:
        """Whether every file is there, and every file and run is as recorded."""
        return not (self.missing or self.changed or self.differing)


def check_sources(folder: Path) -> SourceCheck:
    """Compare the study's files in `folder` with `data/recorded`: SHA-256, size, records, values.

    Every value of every run is compared to the last digit, but the evidence and the engine's
    version, which the files do not say. Raises InputError when `folder` holds none of the files.
    """
    sources = load_table(data_dir("recorded") / "sources.csv").set_index("source_file")
    present = [name for name in sources.index if (folder / name).is_file()]
    if not present:
        raise InputError(
            "none of the study's files",
            got="0 files",
            expected=f"the {len(sources)} that data/recorded/sources.csv lists",
            where=folder,
            do="give the folder that holds them",
        )
    recorded = {str(name): rows for name, rows in load_recorded().groupby("source_file")}
    listed = [(folder / name, sources.loc[name]) for name in present]
    return SourceCheck(
        files=len(present),
        rows=sum(len(recorded[name]) for name in present),
        missing=tuple(name for name in sources.index if name not in present),
        changed=tuple(change for path, row in listed for change in _changes(path, row)),
        differing=tuple(d for path, _ in listed for d in _differences(path, recorded[path.name])),
    )


def report_text(check: SourceCheck) -> str:
    """The check as lines: each difference, then what was compared."""
    lines = [f"missing: {name}" for name in check.missing]
    lines += [
        f"differs: {it.where}: {it.what} is {it.got}, recorded {it.expected}"
        for it in (*check.changed, *check.differing)
    ]
    compared = f"{number_text(check.files)} files and {number_text(check.rows)} runs compared"
    return "\n".join([*lines, f"{compared}: {'all agree' if check.agrees else 'they differ'}"])


def _changes(path: Path, source: pd.Series) -> Iterator[Difference]:
    try:
        records = str(sum(1 for _ in load_records(path)))
    except InputError as error:
        records = str(error)
    found = {"sha256": sha256_of(path), "bytes": str(path.stat().st_size), "records": records}
    for what, got in found.items():
        if got != str(source[what]):
            yield Difference(path.name, what, got, str(source[what]))


def _differences(path: Path, recorded: pd.DataFrame) -> Iterator[Difference]:
    stated = Stated(engine_version=recorded["engine_version"].iloc[0])
    try:
        runs = frame(load_results([path], stated, evidence="recorded").runs).set_index("run_id")
    except InputError as error:
        yield Difference(path.name, "runs", str(error), f"{len(recorded)} runs")
        return
    rows = recorded.set_index("run_id")
    for name in rows.index.symmetric_difference(runs.index):
        found, wanted = name in runs.index, name in rows.index
        yield Difference(name, "run", *("there" if it else "missing" for it in (found, wanted)))
    for name in rows.index.intersection(runs.index):
        for column in rows.columns:
            got, expected = str(runs.at[name, column]), str(rows.at[name, column])
            if got != expected:
                yield Difference(name, column, got, expected)
