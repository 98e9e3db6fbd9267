"""Evidence on cost, prices and the choice of configurations."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from hetinfer.claims.rule import Claim, Finding, bears_out, up_to
from hetinfer.claims.study import (
    MODEL_14B,
    Study,
    beside,
    bounds,
    labelled,
    over_models,
    span,
    with_noise,
)
from hetinfer.published import compare_other, rows_printing
from hetinfer.values import rounded

KEPT_THROUGHPUT_FRAC = 0.9  # what "near-H100 performance" has to keep


def s02(claim: Claim, study: Study) -> Finding:
    """Price per hour and cost per token of 4x4090 over the H100, 14B, in per cent."""
    pairs = _pairs_14b(study, 4)
    frames = []
    for basis, ratio in (("per hour", "price_ratio"), ("per token", "cost_ratio")):
        part = labelled(pairs, 100 * pairs[ratio], **{"cost basis": basis})
        frames.append(part.assign(cell=part["cell"] + f", {basis}"))
    cells = pd.concat(frames, ignore_index=True)
    noise = _ratio_noise(study)
    cells["holds"] = bears_out(cells["value"], low=claim.low, high=claim.high, noise_frac=noise)
    four = study.pairs[study.pairs["gpu_count"] == 4]
    note = f"per token, {over_models(four, 100 * four['cost_ratio'], '%', 1)}"
    is_exact = cells["cost basis"] == "per hour"
    cells = with_noise(cells, np.where(is_exact, 0.0, noise * cells["value"]))
    return Finding(cells, span(cells, "%", 1), bounds=bounds(cells, noise), note=note)


def s03(claim: Claim, study: Study) -> Finding:
    """Cost per million tokens of 14B on 4x4090, and the cheapest 4090 configuration by rate."""
    rows = study.table_2[study.table_2["gpu"] == "rtx-4090"]
    cheapest = rows.loc[rows.groupby("rate_requests_per_s")["cost_usd_per_mtoken"].idxmin()]
    four = rows[rows["gpu_count"] == 4]
    cells = labelled(four, four["cost_usd_per_mtoken"])
    inside = bears_out(cells["value"], low=claim.low, high=claim.high)
    cells["holds"] = inside & four["row"].isin(cheapest["row"]).to_numpy()
    others = rows[rows["gpu_count"] != 4]
    shown = beside(labelled(others, others["cost_usd_per_mtoken"])).assign(
        holds=others["row"].isin(cheapest["row"]).to_numpy()
    )
    best = rows.loc[rows["cost_usd_per_mtoken"].idxmin()]
    origin = [
        f"{text} is row {', '.join(map(str, rows_printing(text, 'cost_usd_per_mtoken', rows)))}"
        for text in (claim.low, claim.high)
    ]
    lowest = f"{rounded(best['cost_usd_per_mtoken'], 3)} ({best['gpu_count']}x, row {best['row']})"
    recomputed = f"{span(cells, 'USD/Mtoken', 3)} on 4x; lowest of all {lowest}"
    every = pd.concat([cells, shown], ignore_index=True)
    noise = study.noise["throughput_tokens_per_s"]
    every = with_noise(every, noise * every["value"])
    return Finding(every, recomputed, bounds=bounds(cells, noise), note="; ".join(origin))


def s04(claim: Claim, study: Study) -> Finding:
    """Saving per token over the H100 in per cent, 14B on every 4090 configuration."""
    pairs = study.pairs
    cells = labelled(pairs, 100 * (1 - pairs["cost_ratio"]))
    scope = (pairs["model"] == MODEL_14B).to_numpy()
    cells = cells.assign(in_scope=scope, holds=False)
    cells.loc[scope, "holds"] = up_to(cells.loc[scope, "value"], claim.high)
    cells.loc[~scope, "holds"] = bears_out(cells.loc[~scope, "value"], high=claim.high)
    two = pairs[pairs["gpu_count"] == 2]
    top = cells[scope].loc[cells.loc[scope, "value"].idxmax()]
    busy = cells[scope & (cells["request rate"] >= 16)]["value"].max()
    note = (
        f"the most is {top['cell']}; at 16 and 32 requests/s, where batches form, at most "
        f"{rounded(busy, 1)} %; other models reach {rounded(cells.loc[~scope, 'value'].max(), 1)} %"
        f"; on 2x 4090, {over_models(two, 100 * (1 - two['cost_ratio']), '%', 1)}"
    )
    cells = with_noise(cells, _ratio_noise(study) * (100 - cells["value"]))
    return Finding(cells, f"up to {rounded(top['value'], 1)} %", bounds=bounds(cells), note=note)


def s12(claim: Claim, study: Study) -> Finding:
    """Throughput per dollar of 2x4090 over the H100's."""
    pairs = study.pairs[study.pairs["gpu_count"] == 2]
    cells = labelled(pairs, 1 / pairs["cost_ratio"])
    cells["in_scope"] = (pairs["model"] == MODEL_14B).to_numpy()
    noise = _ratio_noise(study)
    cells["holds"] = bears_out(cells["value"], low=claim.low, high=claim.high, noise_frac=noise)
    note = f"nowhere above {rounded(cells['value'].max(), 2)}x; "
    note += over_models(pairs, 1 / pairs["cost_ratio"], "x", 2)
    cells = with_noise(cells, noise * cells["value"])
    return Finding(cells, span(cells, "x", 2), bounds=bounds(cells, noise), note=note)


def s13(claim: Claim, study: Study) -> Finding:
    """Saving per token in per cent, and throughput kept, 14B on every 4090 configuration."""
    pairs = study.pairs[study.pairs["model"] == MODEL_14B]
    cells = labelled(pairs, 100 * (1 - pairs["cost_ratio"]), kept_frac=pairs["share"])
    saves = bears_out(cells["value"], low=claim.low, high=claim.high)
    cells["holds"] = saves & (cells["kept_frac"] >= KEPT_THROUGHPUT_FRAC)
    recomputed = f"{int(cells['holds'].sum())} of {len(cells)} cells save that and keep 90 %"
    cells = with_noise(cells, _ratio_noise(study) * (100 - cells["value"]))
    note = f"single configurations only; {_hybrid_note(claim, study)}"
    return Finding(cells, recomputed, bounds=bounds(cells), note=note)


def _hybrid_note(claim: Claim, study: Study) -> str:
    if study.fleets is None:
        return "what a router gains is a matter for simulated fleets"
    fleets = study.fleets
    saves = bears_out(100 * fleets["saved_frac"], low=claim.low, high=claim.high)
    mixed = fleets["mixed"].to_numpy(bool)
    return (
        f"of {len(fleets)} simulated cases {int(saves.sum())} save that against H100s alone at the "
        f"same targets, {int((saves & mixed).sum())} of them with a mixed fleet"
    )


def s27(_: Claim, study: Study) -> Finding:
    """Hourly prices of the paper less the repository's, USD/h."""
    prices = _prices(study)
    rows = []
    for card in ("h100-pcie", "h100-sxm"):
        paper = float(prices["paper-table-1", card, "alternative providers"])
        readme = float(prices["repository-readme-prices", card, "alternative providers"])
        rows.append(_row(card, paper - readme, paper == readme))
    cells = pd.DataFrame(rows)
    recomputed = f"{span(cells, 'USD/h', 2)} apart"
    return Finding(cells, recomputed, bounds=bounds(cells), evidence="printed")


def s28(claim: Claim, study: Study) -> Finding:
    """Alternative providers' price over hyperscalers', in per cent."""
    return _price_ratio(claim, study, lambda alternative, hyper: 100 * alternative / hyper, "%")


def s29(claim: Claim, study: Study) -> Finding:
    """Hyperscalers' price over alternative providers'."""
    return _price_ratio(claim, study, lambda alternative, hyper: hyper / alternative, "x")


def s31(_: Claim, study: Study) -> Finding:
    """Which 4090 rows of Table 2 beat rows 6, 11, 13 on cost, P99 TTFT and throughput at once."""
    rows = study.table_2
    consumer = rows[rows["gpu"] == "rtx-4090"]
    picks = rows[rows["row"].isin([6, 11, 13])]
    beaten_by = [_beating(pick, consumer) for _, pick in picks.iterrows()]
    cells = labelled(picks, picks["cost_usd_per_mtoken"], row=picks["row"])
    cells["beaten_by"] = [", ".join(map(str, rows)) for rows in beaten_by]
    cells["holds"] = [not rows for rows in beaten_by]
    said = [
        f"row {row} by row {by}"
        for row, by in zip(cells["row"], cells["beaten_by"], strict=True)
        if by
    ]
    return Finding(cells, f"beaten: {'; '.join(said) or 'none'}", bounds=bounds(cells))


def _ratio_noise(study: Study) -> float:
    return float(np.sqrt(2) * study.noise["throughput_tokens_per_s"])


def _pairs_14b(study: Study, gpu_count: int) -> pd.DataFrame:
    pairs = study.pairs
    return pairs[(pairs["model"] == MODEL_14B) & (pairs["gpu_count"] == gpu_count)]


def _beating(pick: pd.Series, rows: pd.DataFrame) -> list[int]:
    better = (
        (rows["cost_usd_per_mtoken"] < pick["cost_usd_per_mtoken"])
        & (rows["ttft_p99_s"] < pick["ttft_p99_s"])
        & (rows["throughput_tokens_per_s"] > pick["throughput_tokens_per_s"])
    )
    return list(rows.loc[better, "row"])


def _prices(study: Study) -> pd.Series:
    return compare_other(study.other, study.table_2).set_index(["source", "item", "name"])[
        "printed"
    ]


def _price_ratio(
    claim: Claim, study: Study, ratio: Callable[[float, float], float], unit: str
) -> Finding:
    prices = _prices(study)["paper-table-1"].astype(float)
    rows = []
    for card, name in (
        ("h100-sxm", "hyperscalers"),
        ("h100-pcie", "hyperscalers (low)"),
        ("h100-pcie", "hyperscalers (high)"),
    ):
        value = ratio(prices[card, "alternative providers"], prices[card, name])
        holds = bool(bears_out([value], low=claim.low, high=claim.high)[0])
        rows.append({**_row(card, value, holds), "cell": f"{card}, {name}"})
    cells = pd.DataFrame(rows)
    return Finding(cells, span(cells, unit, 1), bounds=bounds(cells), evidence="printed")


def _row(card: str, value: float, holds: bool) -> dict[str, object]:
    return {"card": card, "cell": card, "value": value, "holds": holds, "in_scope": True}
