"""Board power: what the paper prints, what a card may draw, what it was seen to draw."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from hetinfer.errors import InputError
from hetinfer.footprint.inputs import PowerDraw, Range, load_power_draws
from hetinfer.hardware import find_gpu
from hetinfer.published import PRINTED_POWER_W

PowerAssumption = Literal["as printed", "card limit", "measured draw"]
POWER_ASSUMPTIONS: tuple[PowerAssumption, ...] = ("as printed", "card limit", "measured draw")
MEASURED_ENERGY_COLUMN = "energy_j"  # of all the run's boards; optional in a frame of runs
IDLE = "idle"
FEWEST_BATCH_SIZES = 3  # a line through two batch sizes has no residual to judge it by


@dataclass(frozen=True)
class PowerCurve:
    """Board power against batch size: P = intercept + slope log2(batch), within the batches seen.

    `residual_sd_w` says how far draws of other models and benchmarks lie off the line; `grade` is
    the worst of the rows fitted, `sources` where they come from.
    """

    gpu: str
    intercept_w: float
    slope_w_per_doubling: float
    residual_sd_w: float
    n: int
    batch_low: int
    batch_high: int
    grade: str
    sources: tuple[str, ...]


def board_power(gpu: str, assumption: PowerAssumption) -> Range:
    """Power of one board under load in watts, by one of `POWER_ASSUMPTIONS`.

    `as printed` is what the paper's Table 3 uses, `card limit` the card's own limit, `measured
    draw` the span of the draws in `power_draws.csv`. InputError where there is no such figure.
    """
    if assumption == "measured draw":
        return drawn_power(gpu)
    if assumption == "card limit":
        limit_w = find_gpu(gpu).tdp_w
        return Range(limit_w, limit_w, limit_w)
    printed = printed_board_power_w()
    if assumption != "as printed" or gpu not in printed:
        raise InputError(
            "no such board power",
            got=f"{assumption!r} for {gpu}",
            expected=f"one of {', '.join(POWER_ASSUMPTIONS)}; printed for {', '.join(printed)}",
            where="board_power",
            do="name one of these",
        )
    return Range(printed[gpu], printed[gpu], printed[gpu])


def assumption_table(gpus: Sequence[str]) -> pd.DataFrame:
    """Each card's board power under each assumption: gpu, power, low_w, high_w, grade."""
    rows = []
    for gpu in gpus:
        for assumption in POWER_ASSUMPTIONS:
            known = board_power(gpu, assumption)
            rows.append((gpu, assumption, known.low, known.high, power_grade(gpu, assumption)))
    return pd.DataFrame(rows, columns=["gpu", "power", "low_w", "high_w", "grade"])


def printed_board_power_w() -> dict[str, float]:
    """Watts of one board by card, as the paper's Table 3 takes them."""
    watts = {}
    for configuration, power_w in PRINTED_POWER_W.items():
        count, gpu = configuration.split("x", 1)
        watts[gpu] = power_w / int(count)
    return watts


def drawn_power(gpu: str) -> Range:
    """From the lowest to the highest measured draw of a board under an LLM load, in watts.

    A card without any takes its stand-in's draws as shares of that card's limit, of its own limit,
    never above it (grade `derived`). Raises InputError where the table has neither.
    """
    draws = _board_draws(gpu)
    measured = [draw.power_w for draw in draws if draw.load != IDLE and draw.power_w > 0]
    if measured:
        return Range(min(measured), max(measured))
    stand_ins = [draw.stand_in for draw in draws if draw.stand_in]
    if not stand_ins:
        raise _no_draw(gpu, "under load")
    shares = drawn_power(stand_ins[0])
    scale = find_gpu(gpu).tdp_w / find_gpu(stand_ins[0]).tdp_w
    return Range(shares.low * scale, min(shares.high, find_gpu(stand_ins[0]).tdp_w) * scale)


def idle_power(gpu: str) -> Range:
    """From the lowest to the highest draw of a board at idle, in watts; InputError if none."""
    measured = [draw.power_w for draw in _board_draws(gpu) if draw.load == IDLE]
    if not measured:
        raise _no_draw(gpu, "at idle")
    return Range(min(measured), max(measured))


def pc_power(gpu: str) -> Range:
    """Power in watts of a PC around its busy card, losses of its power supply included.

    The wall draws of that card's PCs less the board: at the least less the card's limit, at the
    most less its highest measured draw. Raises InputError without a wall draw.
    """
    walls = [d.power_w for d in load_power_draws() if d.gpu == gpu and d.boundary == "wall"]
    if not walls:
        raise _no_draw(gpu, "at the wall")
    limit_w = find_gpu(gpu).tdp_w
    return Range(min(walls) - limit_w, max(walls) - min(drawn_power(gpu).high, limit_w))


def power_grade(gpu: str, assumption: PowerAssumption) -> str:
    """How good that figure is: `printed`, the card's own grade, the draws' worst, or `derived`."""
    if assumption == "as printed":
        return "printed"
    if assumption == "card limit":
        return find_gpu(gpu).grade
    grades = [d.grade for d in _board_draws(gpu) if d.load != IDLE and d.power_w > 0]
    return max(grades) if grades else "derived"


def fit_power_curve(gpu: str) -> PowerCurve:
    """Least squares of board power on log2 of batch size, over the card's draws by batch.

    Raises InputError for a card with draws at fewer than `FEWEST_BATCH_SIZES` batch sizes: no curve
    is drawn where there is nothing to draw it through.
    """
    batches, draws = _by_batch(gpu)
    if len(set(batches)) < FEWEST_BATCH_SIZES:
        raise InputError(
            "no power curve",
            got=f"draws of {gpu} at {len(set(batches))} batch sizes",
            expected=f"at least {FEWEST_BATCH_SIZES}",
            where="data/reference/power_draws.csv",
            do="use the span of its draws, or add rows measured at named batch sizes",
        )
    doublings = np.log2(batches)
    watts = np.array([draw.power_w for draw in draws])
    slope, intercept = np.polyfit(doublings, watts, 1)
    residual = watts - intercept - slope * doublings
    return PowerCurve(
        gpu,
        float(intercept),
        float(slope),
        float(np.sqrt(residual @ residual / (len(watts) - 2))),
        len(watts),
        min(batches),
        max(batches),
        max(draw.grade for draw in draws),
        tuple(dict.fromkeys(draw.source for draw in draws)),
    )


def power_at_batch_w(curve: PowerCurve, batch: float) -> float:
    """The curve's power in watts at one batch size; InputError outside the batches fitted."""
    if not curve.batch_low <= batch <= curve.batch_high:
        raise InputError(
            "batch outside the curve",
            got=batch,
            expected=f"from {curve.batch_low} to {curve.batch_high}",
            where=f"the power curve of {curve.gpu}",
            do="stay within it, or use the span of the draws",
        )
    return float(curve.intercept_w + curve.slope_w_per_doubling * np.log2(batch))


def load_batch_draws(gpu: str) -> pd.DataFrame:
    """The card's draws by batch size, one row each: batch, power_w, workload, grade, source."""
    batches, draws = _by_batch(gpu)
    columns = ["power_w", "workload", "grade", "source"]
    return pd.DataFrame(draws, columns=columns).assign(batch=batches)


def measured_power_w(runs: pd.DataFrame) -> "pd.Series[float]":
    """Mean power of all boards of each run in watts: measured energy over duration.

    Reads the optional column `energy_j`; NaN for a run that has none, which is every recorded run.
    InputError for an energy that is not above 0: a meter that failed leaves the cell empty.
    """
    if MEASURED_ENERGY_COLUMN not in runs:
        return pd.Series(np.nan, index=runs.index, dtype=float)
    energy = runs[MEASURED_ENERGY_COLUMN].astype(float)
    wrong = runs.loc[energy <= 0, "run_id"].tolist()
    if wrong:
        raise InputError(
            "measured energy not positive",
            got=energy.min(),
            expected="joules above 0, or an empty cell",
            where=f"column {MEASURED_ENERGY_COLUMN} of run {wrong[0]}",
            do="empty the cell, or measure the run again",
        )
    return energy / runs["duration_s"].astype(float)


def _board_draws(gpu: str) -> list[PowerDraw]:
    return [draw for draw in load_power_draws() if draw.gpu == gpu and draw.boundary == "board"]


def _by_batch(gpu: str) -> tuple[list[int], list[PowerDraw]]:
    named = [(re.fullmatch(r"batch (\d+)", draw.load), draw) for draw in _board_draws(gpu)]
    found = [(int(match[1]), draw) for match, draw in named if match]
    return [batch for batch, _ in found], [draw for _, draw in found]


def _no_draw(gpu: str, when: str) -> InputError:
    known = sorted({draw.gpu for draw in load_power_draws()})
    return InputError(
        f"no measured draw {when}",
        got=f"none for {gpu}",
        expected=f"a row (there are rows for {', '.join(known)})",
        where="data/reference/power_draws.csv",
        do="add a row with its source, or take another power assumption",
    )
