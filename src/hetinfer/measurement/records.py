"""What a campaign leaves in `data/measured/CAMPAIGN/`: one file a run, and tables made of them.

A run counts when its file is there, and a file is there whole or not at all. So a campaign that was
killed goes on where it was. Next to the runs, a failed cell leaves the reason and its log's end.
"""

import contextlib
import fcntl
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from hetinfer.errors import InputError
from hetinfer.paths import root_dir, write_atomically
from hetinfer.runs import campaign_path, frame, save_runs
from hetinfer.vllm_results import load_results

RUN, FAILURE, POWER = ".json", ".failed.txt", ".power.csv"
OWN = "measurement"  # the field of a run's file that this package adds to what vLLM's client wrote
DROPPED = ("generated_texts",)  # random words of a dummy model, or a model's whole output


@dataclass(frozen=True)
class Record:
    """What one cell left: files by name, the one that makes it count last; why it failed, or ''."""

    cell: str
    files: tuple[tuple[str, bytes], ...]
    reason: str = ""


def campaign_folder(name: str) -> Path:
    """The folder of a campaign's results; InputError for a name that is no plain folder name."""
    return campaign_path(name).parent


def runs_folder(folder: Path) -> Path:
    """Where in a campaign's folder the runs' files are."""
    return folder / "runs"


def run_record(cell: str, result: Mapping[str, Any], power: pd.DataFrame) -> Record:
    """A completed run: vLLM's own result with `measurement` added, and the power samples if any."""
    kept = {key: value for key, value in result.items() if key not in DROPPED}
    content = json.dumps(_plain(kept), allow_nan=False) + "\n"
    samples = ((f"{cell}{POWER}", power.to_csv(index=False).encode()),) if len(power) else ()
    return Record(cell, (*samples, (f"{cell}{RUN}", content.encode())))


def failure_record(cell: str, reason: str, detail: str, log_end: str) -> Record:
    """A failed cell: the reason's code, a line of detail, and what the log said last."""
    text = f"{reason}: {detail}\n\nEnd of the log:\n{portable(log_end)}\n"
    return Record(cell, ((f"{cell}{FAILURE}", text.encode()),), reason)


def save_record(folder: Path, record: Record) -> None:
    """Write a record's files, each whole or not at all; raises OSError where the disk is full."""
    for name, content in record.files:
        write_atomically(runs_folder(folder) / name, content)


def finished_cells(folder: Path) -> set[str]:
    """The cells that have a run."""
    return {path.name.removesuffix(RUN) for path in runs_folder(folder).glob(f"*{RUN}")}


def failed_cells(folder: Path) -> dict[str, str]:
    """The cells that are marked as failed, with the first line of the mark."""
    marks = runs_folder(folder).glob(f"*{FAILURE}")
    return {path.name.removesuffix(FAILURE): path.read_text().partition("\n")[0] for path in marks}


def forget_failures(folder: Path) -> None:
    """Remove the marks of failed cells, so that they are tried again."""
    for path in runs_folder(folder).glob(f"*{FAILURE}"):
        path.unlink()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a campaign's folder while the block lasts; the kernel lets go when the process ends.

    Raises InputError while another process holds it. Clears what a killed process left half done.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                "campaign is running",
                got="another process at work on it",
                expected="one runner a campaign",
                where=folder,
                do="wait for the other, or end it",
            ) from None
        for half in runs_folder(folder).glob(".*.partial"):
            half.unlink()
        yield


def save_tables(folder: Path) -> None:
    """Write what is derived from the runs' files: `runs.csv`, `cells.csv` and `manifest.json`.

    `runs.csv` has the columns of every table of runs; `cells.csv` tells of each run its place in
    the campaign, engine, pacing and energy; `manifest.json` lists each machine with its cells.
    """
    files = sorted(runs_folder(folder).glob(f"*{RUN}"))
    if not files:
        return
    own = {path: json.loads(path.read_text())[OWN] for path in files}
    save_runs(frame(load_results(files).runs), folder / "runs.csv")
    rows = [{"source_file": path.name, **_flat(fields)} for path, fields in own.items()]
    write_atomically(folder / "cells.csv", pd.DataFrame(rows).to_csv(index=False))
    machines: dict[str, list[str]] = {}
    for fields in own.values():
        machines.setdefault(json.dumps(fields["manifest"]), []).append(fields["cell"])
    listed = [{"cells": cells, **json.loads(machine)} for machine, cells in machines.items()]
    write_atomically(folder / "manifest.json", json.dumps(listed, indent=1) + "\n")


def load_cells(folder: Path) -> pd.DataFrame:
    """The table `cells.csv` of a campaign's folder; its `source_file` joins it to the runs."""
    path = folder / "cells.csv"
    if not path.is_file():
        raise InputError(
            "no measured cells",
            got="no file",
            expected="what a campaign leaves",
            where=path,
            do="run the campaign",
        )
    return pd.read_csv(path, keep_default_na=False, na_values=[""])


def portable(text: str) -> str:
    """A text without the paths of this machine: the clone becomes `.`, the home folder `~`."""
    return text.replace(str(root_dir()), ".").replace(str(Path.home()), "~")


def portable_command(command: Sequence[str]) -> list[str]:
    """A command line without the paths of this machine."""
    return [portable(word) for word in command]


def _flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Scalars as they are, records of one level as `record_field`; lists and manifest left out."""
    row: dict[str, Any] = {}
    for key, value in fields.items():
        if isinstance(value, dict) and key != "manifest":
            row |= {f"{key}_{name}": part for name, part in value.items()}
        elif not isinstance(value, list | dict):
            row[key] = value
    return row


def _plain(value: Any) -> Any:
    """The value with NaN and infinities, which JSON has not, as null."""
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
