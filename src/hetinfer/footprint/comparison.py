"""Two ways of doing the same work: which is cleaner, where on earth, and what decides it.

Same work means the same model, offered rate and latency target. Total carbon per million tokens is
a straight line over grid intensity: embodied carbon plus intensity times energy.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from hetinfer.errors import InputError
from hetinfer.footprint.carbon import (
    QUANTITIES,
    Holding,
    Machine,
    embodied_g_per_mtoken,
    kwh_per_mtoken,
    middle_machine,
)
from hetinfer.footprint.grid import load_grid
from hetinfer.footprint.inputs import COVERAGE_FRAC, Array, Range
from hetinfer.metrics import share_table
from hetinfer.runs import CONFIGURATION, average_replicates

BASELINE = ("h100-pcie", 1)
PAIR = [*CONFIGURATION, "rate_requests_per_s"]
Verdict = Literal["cleaner", "open", "dirtier"]


@dataclass(frozen=True)
class Contest:
    """A machine against another that does the same work, and whose hardware is held how."""

    machine: Machine[Array]
    holding: Holding
    against: Machine[Array]
    against_holding: Holding
    wear_frac: float = 0.0


@dataclass(frozen=True)
class Lines:
    """Carbon over grid intensity of both sides, arrays (n_pairs, n_samples), per million tokens."""

    kwh: Array
    embodied_g: Array
    against_kwh: Array
    against_embodied_g: Array


def equal_work(
    runs: pd.DataFrame, *, ttft_target_s: float, baseline: tuple[str, int] = BASELINE
) -> pd.DataFrame:
    """Configurations beside the baseline at the same model and offered rate, one row a pair.

    Columns: `PAIR`, throughput_tokens_per_s and ttft_p99_s of both (the baseline's with the prefix
    `baseline_`), meets_target: whether both keep P99 TTFT within the target. Replicates are
    averaged. Raises InputError for a target that is not above 0, or when nothing pairs up.
    """
    if not ttft_target_s > 0:
        raise InputError(
            "latency target not positive",
            got=ttft_target_s,
            expected="seconds above 0",
            where="equal_work",
            do="give the P99 TTFT that both sides must keep",
        )
    cells = average_replicates(runs)
    latency = cells[[*PAIR, "ttft_p99_s"]]
    is_baseline = (cells["gpu"] == baseline[0]) & (cells["gpu_count"] == baseline[1])
    base = latency[is_baseline].drop(columns=["gpu", "gpu_count"])
    pairs = (
        share_table(cells, baseline)
        .merge(latency, on=PAIR)
        .merge(
            base.rename(columns={"ttft_p99_s": "baseline_ttft_p99_s"}),
            on=["model", "rate_requests_per_s"],
        )
    )
    slower = pairs[["ttft_p99_s", "baseline_ttft_p99_s"]].max(axis=1)
    return pairs.assign(meets_target=slower <= ttft_target_s)


def lines_of(contest: Contest, pairs: pd.DataFrame) -> Lines:
    """Both sides' energy and embodied carbon at the throughputs of `equal_work`'s pairs."""
    cards, rate = pairs["gpu_count"], pairs["throughput_tokens_per_s"]
    base_cards = np.full(len(pairs), BASELINE[1])
    base_rate = pairs["baseline_tokens_per_s"]
    return Lines(
        kwh_per_mtoken(contest.machine, cards, rate),
        embodied_g_per_mtoken(
            contest.machine, cards, rate, holding=contest.holding, wear_frac=contest.wear_frac
        ),
        kwh_per_mtoken(contest.against, base_cards, base_rate),
        embodied_g_per_mtoken(
            contest.against, base_cards, base_rate, holding=contest.against_holding
        ),
    )


def cleaner_below_g_per_kwh(lines: Lines) -> Array:
    """Grid intensity below which the machine is the cleaner, shape (n_pairs, n_samples).

    (M_against - M) / (e - e_against), with M embodied carbon and e energy per million tokens: where
    it has less made and takes more energy. Infinite where it is the cleaner on every grid, 0 where
    on none, NaN where it is so only above an intensity.
    """
    less_made = lines.against_embodied_g - lines.embodied_g
    more_energy = lines.kwh - lines.against_kwh
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = less_made / more_energy
    one_way = np.where(more_energy < 0, np.inf, 0.0)
    above = np.where((less_made < 0) & (more_energy < 0), np.nan, one_way)
    return np.where((less_made > 0) & (more_energy > 0), crossing, above)


def cleaner_frac(lines: Lines, g_per_kwh: float) -> Array:
    """Share of the samples (n_pairs,) in which the machine is the cleaner at that intensity."""
    total = lines.embodied_g + g_per_kwh * lines.kwh
    against = lines.against_embodied_g + g_per_kwh * lines.against_kwh
    return np.asarray((total < against).mean(axis=-1))


def crossing_table(lines: Lines, pairs: pd.DataFrame) -> pd.DataFrame:
    """One row a pair: the grid intensity below which the machine is the cleaner.

    cleaner_below_g_per_kwh with its interval (`_low`, `_high`), infinite where no grid is too dirty
    and 0 where none is clean enough; always_frac, below_frac, above_frac, never_frac: the samples
    in which it is the cleaner on every grid, only below, only above the crossing, on none.
    """
    below = cleaner_below_g_per_kwh(lines)
    table = pairs[[*PAIR, "meets_target"]].assign(
        always_frac=np.isposinf(below).mean(axis=-1),
        below_frac=(np.isfinite(below) & (below > 0)).mean(axis=-1),
        above_frac=np.isnan(below).mean(axis=-1),
        never_frac=(below == 0).mean(axis=-1),
    )
    name = "cleaner_below_g_per_kwh"
    table[[f"{name}_low", name, f"{name}_high"]] = [_steps(row) for row in below]
    return table


def region_table(lines: Lines, pairs: pd.DataFrame) -> pd.DataFrame:
    """One row a pair and region: cleaner_frac, and the verdict that it allows.

    `cleaner` where the machine is so in at least `1 - (1 - COVERAGE_FRAC) / 2` of the samples,
    `dirtier` where it is in at most the rest, else `open`. Regions come cleanest first.
    """
    frames = [
        pairs[[*PAIR, "meets_target"]].assign(
            region=grid.region,
            g_co2_per_kwh=grid.g_co2_per_kwh,
            cleaner_frac=cleaner_frac(lines, grid.g_co2_per_kwh),
        )
        for grid in load_grid().values()
    ]
    table = pd.concat(frames, ignore_index=True)
    return table.assign(verdict=table["cleaner_frac"].map(verdict_of))


def verdict_of(cleaner_frac: float) -> Verdict:
    """What a share of samples allows to say, at the coverage of every interval here."""
    tail = (1 - COVERAGE_FRAC) / 2
    if cleaner_frac >= 1 - tail:
        return "cleaner"
    return "dirtier" if cleaner_frac <= tail else "open"


def tornado(
    machine: Machine[Range],
    against: Machine[Range],
    pair: pd.DataFrame,
    *,
    holdings: tuple[Holding, Holding],
    g_per_kwh: float,
) -> pd.DataFrame:
    """How one pair's ratio of total carbon, machine over against, moves with each input alone.

    One row an input: side, quantity, low and high of its range, ratio_low and ratio_high with the
    others at their best or middle figure, swing_frac = |ln(ratio_high / ratio_low)|; widest first.
    The grid's row spans the cleanest and dirtiest region. `pair` has one row.
    """

    def ratio(own: dict[str, float], theirs: dict[str, float], g: float = g_per_kwh) -> float:
        sides = middle_machine(machine, **own), middle_machine(against, **theirs)
        return _ratio(lines_of(Contest(sides[0], holdings[0], sides[1], holdings[1]), pair), g)

    grids = [grid.g_co2_per_kwh for grid in load_grid().values()]
    ends = [ratio({}, {}, g) for g in (grids[0], grids[-1])]
    rows = [("grid", "g_co2_per_kwh", grids[0], grids[-1], *ends)]
    for side, name, known in _inputs(machine, against):
        ends = [
            ratio(
                {name: value} if side != "against" else {},
                {name: value} if side != "machine" else {},
            )
            for value in (known.low, known.high)
        ]
        rows.append((side, name, known.low, known.high, *ends))
    columns = ["side", "quantity", "low", "high", "ratio_low", "ratio_high"]
    table = pd.DataFrame(rows, columns=columns)
    swing = np.abs(np.log(table["ratio_high"] / table["ratio_low"]))
    table = table.assign(ratio_middle=ratio({}, {}), swing_frac=swing)
    return table.sort_values("swing_frac", ascending=False, ignore_index=True)


def _inputs(machine: Machine[Range], against: Machine[Range]) -> list[tuple[str, str, Range]]:
    shared = [("both", "utilisation_frac", machine.utilisation_frac)]
    own = [
        (side, name, getattr(known, name))
        for side, known in (("machine", machine), ("against", against))
        for name in QUANTITIES
        if name != "utilisation_frac"
    ]
    return [(side, name, known) for side, name, known in shared + own if known.low < known.high]


def _ratio(lines: Lines, g_per_kwh: float) -> float:
    total = lines.embodied_g + g_per_kwh * lines.kwh
    against = lines.against_embodied_g + g_per_kwh * lines.against_kwh
    return float((total / against)[0, 0])


def _steps(samples: Array) -> tuple[float, float, float]:
    known = samples[~np.isnan(samples)]
    if known.size == 0:
        return (np.nan, np.nan, np.nan)
    tail = (1 - COVERAGE_FRAC) / 2
    # order statistics themselves: between a number and infinity nothing can be interpolated
    low, median, high = np.quantile(known, [tail, 0.5, 1 - tail], method="inverted_cdf")
    return float(low), float(median), float(high)
