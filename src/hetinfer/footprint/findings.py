"""What is found of the study's claims on energy and carbon: S08 to S11, and S38.

Functions give the columns `FINDING_COLUMNS`, one row a number: `claim` and `quantity`; `power`
(assumption) and `boundary` (`boards` alone, as the study counts, or the whole `machine`); `model`,
`configuration` and its rate; `against` and its rate for ratios; `meets_target`, whether both sides
keep the latency target (missing where only one side is spoken of, or the rates differ); `holding`
and `region`, for carbon; `value` (median), `low` and `high` (95 % of the samples), `unit`; and
`evidence`. A grid intensity below which cards are the cleaner may be infinite: on every grid.
"""

import numpy as np
import pandas as pd

from hetinfer import metrics
from hetinfer.footprint.carbon import (
    HOLDINGS,
    Machine,
    embodied_g_per_mtoken,
    kwh_per_mtoken,
)
from hetinfer.footprint.comparison import (
    BASELINE,
    Contest,
    crossing_table,
    lines_of,
    region_table,
)
from hetinfer.footprint.grid import find_grid, load_grid
from hetinfer.footprint.inputs import Array, interval
from hetinfer.footprint.power import POWER_ASSUMPTIONS
from hetinfer.footprint.study import STUDY_REGION, mtoken_per_kwh_samples, table_3_runs
from hetinfer.hardware import configuration_label

FINDING_COLUMNS = [
    "claim", "quantity", "power", "boundary", "model", "configuration",
    "rate_requests_per_s", "against", "against_rate_requests_per_s", "meets_target", "holding",
    "region", "value", "low", "high", "unit", "evidence",
]  # fmt: skip
LABELS = ["power", "boundary", "against", "holding", "region"]  # empty where one has no meaning


def energy_findings(
    table_2: pd.DataFrame,
    pairs: pd.DataFrame,
    *,
    n_samples: int,
    noise_frac: float,
    rng: np.random.Generator,
) -> pd.DataFrame:
    """S08 to S11 under each power assumption, with intervals; columns `FINDING_COLUMNS`.

    Boards alone, as the study counts. S08, S09 and S11 are of runs 13 and 6; S10 is the H100's
    tokens per kWh over the 4090s', as the study pairs them (16 requests per s against 4) and for
    every pair of `equal_work` at its own rate. `noise_frac` is that of one run's throughput.
    """
    runs = table_3_runs(table_2)
    noise = np.exp(noise_frac * rng.standard_normal((len(runs), n_samples)))
    per_s = runs["throughput_tokens_per_s"].to_numpy(dtype=float)[:, np.newaxis] * noise
    per_hour = per_s * metrics.SECONDS_PER_HOUR / metrics.TOKENS_PER_MTOKEN
    frames = [_rows("S08", _sides(runs), "tokens per hour", per_hour, "Mtoken/h")]
    grid_g_per_kwh = find_grid(STUDY_REGION).g_co2_per_kwh
    for power in POWER_ASSUMPTIONS:
        both = pd.concat([runs, _baselines(pairs), pairs], ignore_index=True)
        samples = mtoken_per_kwh_samples(
            both, power, n_samples=n_samples, noise_frac=noise_frac, rng=rng
        )
        own, base, other = np.split(samples, [len(runs), len(runs) + len(pairs)])
        labels = {"power": power, "boundary": "boards"}
        study = _against(_sides(runs.iloc[:1]), runs.iloc[1:])
        equal = _against(_sides(_baselines(pairs)), pairs)
        frames += [
            _rows("S09", _sides(runs, **labels), "tokens per kWh", own, "Mtoken/kWh"),
            _rows("S10", study.assign(**labels), "energy efficiency", own[:1] / own[1:], "x"),
            _rows("S10", equal.assign(**labels), "energy efficiency", base / other, "x"),
            _rows(
                "S11",
                _sides(runs, region=STUDY_REGION, **labels),
                "operational carbon",
                grid_g_per_kwh / own,
                "g/Mtoken",
            ),
        ]
    return pd.concat(frames, ignore_index=True)


def carbon_findings(
    pairs: pd.DataFrame,
    machine: Machine[Array],
    against: Machine[Array],
    *,
    boundary: str,
    power: str,
) -> pd.DataFrame:
    """S38: embodied, operational and total carbon of both sides, region by region.

    One row a pair, side, holding, region and quantity, with the columns `FINDING_COLUMNS`. Embodied
    carbon is the same in every region.
    """
    regions = list(load_grid().values())
    g_per_kwh = np.array([grid.g_co2_per_kwh for grid in regions])[:, np.newaxis, np.newaxis]
    frames = []
    for side, counted in ((machine, pairs), (against, _baselines(pairs))):
        cards, rate = counted["gpu_count"], counted["throughput_tokens_per_s"]
        run = g_per_kwh * kwh_per_mtoken(side, cards, rate)
        here = pd.concat([_sides(counted, region=grid.region) for grid in regions])
        here = here.assign(power=power, boundary=boundary)
        for holding in HOLDINGS:
            made = embodied_g_per_mtoken(side, cards, rate, holding=holding) + 0 * run
            for quantity, samples in (
                ("embodied", made),
                ("operational", run),
                ("total", made + run),
            ):
                flat = samples.reshape(len(here), -1)
                held = here.assign(holding=holding)
                frames.append(_rows("S38", held, f"{quantity} carbon", flat, "g/Mtoken"))
    return pd.concat(frames, ignore_index=True)


def crossing_findings(
    pairs: pd.DataFrame,
    machine: Machine[Array],
    against: Machine[Array],
    *,
    boundary: str,
    power: str,
) -> pd.DataFrame:
    """S38 for every pair: the cards however held against new cards of the baseline.

    Quantities: `embodied ratio` (cards over baseline), `cleaner below` (the grid intensity below
    which the cards' total is the lower), and in how many regions it is so for sure
    (`regions cleaner`), for sure not (`regions dirtier`), or open (`regions open`).
    """
    labels = _against(_sides(pairs, power=power, boundary=boundary), _baselines(pairs))
    frames = []
    for holding in HOLDINGS:
        here = labels.assign(holding=holding)
        lines = lines_of(Contest(machine, holding, against, "new"), pairs)
        ratio = lines.embodied_g / lines.against_embodied_g
        frames.append(_rows("S38", here, "embodied ratio", ratio, "x"))
        below = crossing_table(lines, pairs).filter(like="cleaner_below").to_numpy()
        frames.append(_finished("S38", here, "cleaner below", below, "g/kWh"))
        verdicts = region_table(lines, pairs)["verdict"].to_numpy().reshape(-1, len(pairs))
        for verdict in ("cleaner", "open", "dirtier"):
            count = (verdicts == verdict).sum(axis=0)
            exact = np.column_stack([count, count, count])
            frames.append(_finished("S38", here, f"regions {verdict}", exact, "regions"))
    return pd.concat(frames, ignore_index=True)


def _sides(runs: pd.DataFrame, **labels: str) -> pd.DataFrame:
    names = map(configuration_label, runs["gpu"], runs["gpu_count"])
    sides = runs[["model", "rate_requests_per_s"]].assign(configuration=list(names), **labels)
    if "meets_target" in runs:
        sides["meets_target"] = runs["meets_target"]
    return sides.reset_index(drop=True)


def _against(sides: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    other = _sides(others)
    return sides.assign(
        against=other["configuration"], against_rate_requests_per_s=other["rate_requests_per_s"]
    )


def _baselines(pairs: pd.DataFrame) -> pd.DataFrame:
    return pairs.assign(
        gpu=BASELINE[0],
        gpu_count=BASELINE[1],
        throughput_tokens_per_s=pairs["baseline_tokens_per_s"],
    )


def _rows(
    claim: str, sides: pd.DataFrame, quantity: str, samples: Array, unit: str
) -> pd.DataFrame:
    low, median, high = interval(samples)
    return _finished(claim, sides, quantity, np.column_stack([low, median, high]), unit)


def _finished(
    claim: str, sides: pd.DataFrame, quantity: str, bounds: Array, unit: str
) -> pd.DataFrame:
    low, value, high = bounds.T
    blank = {name: "" for name in LABELS if name not in sides}
    table = sides.assign(
        **blank, claim=claim, quantity=quantity, unit=unit, value=value, low=low, high=high
    )
    recorded = table["power"].isin(["", "as printed"])
    table = table.assign(evidence=np.where(recorded, "recorded", "reference"))
    return table.reindex(columns=FINDING_COLUMNS)
