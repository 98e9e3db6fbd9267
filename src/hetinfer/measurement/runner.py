"""Runs a campaign on this machine or on others, and goes on where it was left."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hetinfer.errors import InputError
from hetinfer.hardware import CPU, find_gpu
from hetinfer.measurement import records
from hetinfer.measurement.campaign import Campaign, Cell, Series, all_cells, all_series
from hetinfer.measurement.client import dataset_flags
from hetinfer.measurement.manifest import Manifest, take_manifest
from hetinfer.measurement.plan import CellPlan, duration_text, obstacle, plan_campaign
from hetinfer.measurement.records import Record
from hetinfer.measurement.series import Setup, measure_series
from hetinfer.measurement.server import check_interpreter, check_model, connect, free_port


@dataclass(frozen=True)
class Outcome:
    """A campaign's state: which cells have a run, which failed or were skipped, and why."""

    finished: tuple[str, ...]
    failed: tuple[tuple[str, str], ...]
    skipped: tuple[tuple[str, str], ...]
    total: int


Say = Callable[[str], None]
Source = Callable[[Sequence[Series]], Iterator[Record]]


def measure_campaign(
    campaign: Campaign,
    setup: Setup,
    *,
    say: Say,
    retry_failed: bool = False,
    source: Source | None = None,
) -> Outcome:
    """Run every cell that has no run yet, record each, and say how far it is and what is left.

    `source` runs series and gives their records; by default this machine does, one by one. Raises
    InputError before anything starts if nothing can: vLLM or the prompts missing, a port in use,
    another runner at work.
    """
    folder = records.campaign_folder(campaign.name)
    skipped: dict[str, str] = {}
    if source is None:
        check_setup(campaign, setup)
        skipped = cells_out_of_reach(campaign, setup)
    with records.locked(folder):
        if retry_failed:
            records.forget_failures(folder)
        open_series = remaining_series(campaign, folder, skipped)
        found = source(open_series) if source else _run_here(campaign, open_series, setup, say)
        _collect(campaign, folder, found, say)
        records.save_tables(folder)
    return outcome(campaign, folder, skipped)


def measure_cell(campaign: Campaign, cell: Cell, setup: Setup) -> Path:
    """Run one cell and return its file; a cell that has a run already is not run again.

    Raises InputError if the cell fails, with the reason.
    """
    folder = records.campaign_folder(campaign.name)
    path = records.runs_folder(folder) / f"{cell.name}{records.RUN}"
    if path.is_file():
        return path
    check_setup(campaign, setup)
    with records.locked(folder):
        for record in measure_series(campaign, Series(cell.name, (cell,)), setup):
            records.save_record(folder, record)
        records.save_tables(folder)
    if path.is_file():
        return path
    raise InputError(
        "cell failed",
        got=records.failed_cells(folder)[cell.name],
        expected="a run",
        where=cell.name,
        do=f"read {cell.name}{records.FAILURE} in {folder}",
    )


def check_setup(campaign: Campaign, setup: Setup) -> None:
    """InputError for whatever is sure to fail, before anything starts."""
    dataset_flags(campaign.dataset)
    if setup.base_url:
        if len(campaign.configurations) > 1:
            raise InputError(
                "endpoint",
                got=f"a campaign of {len(campaign.configurations)} configurations",
                expected="a campaign of the one that the endpoint serves",
                where=campaign.name,
                do="write a campaign of that model and hardware",
            )
        connect(setup.base_url)
        return
    check_interpreter(setup.interpreter)
    for model, _, _ in campaign.configurations:
        check_model(model)
    free_port(setup.port)


def cells_out_of_reach(campaign: Campaign, setup: Setup) -> dict[str, str]:
    """The cells that cannot run on this machine, and why: too large, or GPUs it does not have.

    Raises InputError when no cell can.
    """
    if setup.base_url:
        return {}
    here = host_gpus(take_manifest(None, "", "")) | {CPU: 1}
    skipped = {}
    for cell in all_cells(campaign):
        have = here.get(cell.gpu, 0)
        lacking = f"needs {cell.gpu_count} x {cell.gpu}, this machine has {have}"
        reason = obstacle(campaign, cell) or (lacking if have < cell.gpu_count else "")
        if reason:
            skipped[cell.name] = reason
    if len(skipped) == len(all_cells(campaign)):
        raise InputError(
            "nothing to run here",
            got=next(iter(skipped.values())),
            expected="at least one cell that fits this machine",
            where=f"campaign {campaign.name}",
            do="choose another campaign, or a machine with those GPUs",
        )
    return skipped


def host_gpus(manifest: Manifest) -> dict[str, int]:
    """How many of each known GPU the host has, by short name; others are left out."""
    counts: dict[str, int] = {}
    for card in manifest.gpus:
        with contextlib.suppress(InputError):
            name = find_gpu(card.name or "").gpu
            counts[name] = counts.get(name, 0) + 1
    return counts


def remaining_series(
    campaign: Campaign, folder: Path, skipped: Mapping[str, str] | None = None
) -> list[Series]:
    """The series with the cells that have neither a run nor a mark of failure, nor are skipped."""
    settled = (
        records.finished_cells(folder) | set(records.failed_cells(folder)) | set(skipped or {})
    )
    open_series = [
        replace(s, cells=tuple(c for c in s.cells if c.name not in settled))
        for s in all_series(campaign)
    ]
    return [series for series in open_series if series.cells]


def outcome(campaign: Campaign, folder: Path, skipped: Mapping[str, str] | None = None) -> Outcome:
    """Where a campaign stands, of the cells that its file names now."""
    names = [cell.name for cell in all_cells(campaign)]
    finished, failed = records.finished_cells(folder), records.failed_cells(folder)
    return Outcome(
        finished=tuple(name for name in names if name in finished),
        failed=tuple((name, failed[name]) for name in names if name in failed),
        skipped=tuple((skipped or {}).items()),
        total=len(names),
    )


def outcome_text(campaign: Campaign, found: Outcome) -> str:
    """Lines that say how a campaign stands: each failed or skipped cell, then the counts."""
    lines = [f"failed: {cell}: {reason}" for cell, reason in found.failed]
    lines += [f"skipped: {cell}: {reason}" for cell, reason in found.skipped]
    counts = f"{len(found.finished)} of {found.total} cells have a run"
    folder = records.portable(str(records.campaign_folder(campaign.name)))
    return "\n".join([*lines, f"{campaign.name}: {counts}, in {folder}"])


def _run_here(
    campaign: Campaign, series: Sequence[Series], setup: Setup, say: Say
) -> Iterator[Record]:
    for one in series:
        say(f"{one.name}: logs in {records.portable(str(setup.work_dir / campaign.name))}")
        yield from measure_series(campaign, one, setup)


def _collect(campaign: Campaign, folder: Path, found: Iterator[Record], say: Say) -> None:
    """Save records as they come, and say of each what it is, with the time that is left."""
    plans = {plan.cell: plan for plan in plan_campaign(campaign, {})}
    began_s = time.monotonic()
    planned_s = 0.0
    for record in found:
        records.save_record(folder, record)
        planned_s += plans[record.cell].duration_s
        state = outcome(campaign, folder)
        settled = {*state.finished, *(cell for cell, _ in state.failed)}
        left_s = _left_s(plans, settled, planned_s, time.monotonic() - began_s)
        verdict = f"failed ({record.reason})" if record.reason else "done"
        place = f"[{len(settled)}/{state.total}]"
        say(f"{place} {record.cell} {verdict}; about {duration_text(left_s)} left")


def _left_s(
    plans: dict[str, CellPlan], settled: set[str], planned_s: float, took_s: float
) -> float:
    """The plan of what is open, stretched as what ran was."""
    open_s = sum(plan.duration_s for cell, plan in plans.items() if cell not in settled)
    return open_s * (took_s / planned_s if planned_s else 1.0)
