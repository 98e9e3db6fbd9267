"""Evidence on energy and carbon per token."""

import pandas as pd

from hetinfer import metrics
from hetinfer.claims.rule import Claim, Finding, near
from hetinfer.claims.study import Study, bounds, labelled, span
from hetinfer.footprint import carbon, comparison
from hetinfer.published import PRINTED_POWER_W, TABLE_3_RUNS, limit_power_w
from hetinfer.values import rounded

GRID_G_PER_KWH = 242.0  # the grid intensity that the paper's Table 3 states
TTFT_TARGET_S = 2.0  # the study's own target, on P99 here
AS_PRINTED = "700 W, as printed"
OWN_LIMIT = "350 W, its own limit"


def s08(claim: Claim, study: Study) -> Finding:
    """Tokens per hour of runs 13 and 6, in millions."""
    cells = _table_3(study).drop_duplicates("configuration")
    cells = cells.assign(value=cells["mtoken_per_h"])
    return _against_printed(claim, study, cells, decimals=2)


def s09(claim: Claim, study: Study) -> Finding:
    """Million tokens per kWh of runs 13 and 6, under both board powers."""
    cells = _table_3(study)
    note = (
        "15.4 follows from the already rounded 10.8 Mtoken/h; unrounded it is "
        f"{rounded(cells['mtoken_per_kwh'].iloc[0], 2)}, which is within replicate noise of it"
    )
    return _against_printed(
        claim, study, cells.assign(value=cells["mtoken_per_kwh"]), decimals=2, note=note
    )


def s10(claim: Claim, study: Study) -> Finding:
    """Tokens per joule of the H100 over 2x4090: as the paper pairs them, then at equal rates."""
    rows = study.table_2.set_index("row")["throughput_tokens_per_s"]
    by_rate = study.cells[study.cells["model"] == study.table_2["model"].iloc[0]]
    pairs = [("16 against 4", float(rows[13]), float(rows[6]))]
    for rate, group in by_rate.groupby("rate_requests_per_s"):
        speed = group.set_index(["gpu", "gpu_count"])["throughput_tokens_per_s"]
        pairs.append((f"{rate:g} on both", speed["h100-pcie", 1], speed["rtx-4090", 2]))
    cells = pd.DataFrame(
        [
            {
                "request rate": pairing,
                "board power assumption": assumption,
                "cell": f"{pairing} ({assumption})",
                "value": metrics.mtoken_per_kwh(h100_w, h100)
                / metrics.mtoken_per_kwh(consumer_w, consumer),
                "in_scope": True,
            }
            for assumption, h100_w, consumer_w in _assumptions()
            for pairing, h100, consumer in pairs
        ]
    )
    noise = study.noise["throughput_tokens_per_s"] * 2**0.5
    cells["holds"] = near(cells["value"], claim.printed, noise_frac=noise)
    note = "3.1 compares the H100 at 16 requests/s with 2x4090 at 4, with twice that card's limit"
    return Finding(cells, span(cells, "x", 1), bounds=bounds(cells, noise), note=note)


def s11(claim: Claim, study: Study) -> Finding:
    """Operational carbon in g per million tokens at 242 g/kWh, under both board powers."""
    cells = _table_3(study)
    cells = cells.assign(value=GRID_G_PER_KWH / cells["mtoken_per_kwh"])
    return _against_printed(claim, study, cells, decimals=1)


def s38(_: Claim, study: Study) -> Finding:
    """Embodied carbon per token of owned and idle 4090s against a new H100's, at equal work."""
    pairs = comparison.equal_work(study.runs, ttft_target_s=TTFT_TARGET_S)
    pairs = pairs[pairs["meets_target"]]
    known = carbon.known_machine("rtx-4090"), carbon.known_machine("h100-pcie")
    frames = []
    for holding in ("owned", "idle"):
        for utilisation in (known[0].utilisation_frac.low, known[0].utilisation_frac.high):
            sides = [carbon.middle_machine(side, utilisation_frac=utilisation) for side in known]
            lines = comparison.lines_of(
                comparison.Contest(sides[0], holding, sides[1], "new"), pairs
            )
            cells = labelled(
                pairs,
                lines.embodied_g[:, 0],
                utilisation=utilisation,
                holds=lines.embodied_g[:, 0] < lines.against_embodied_g[:, 0],
            )
            busy = rounded(100 * utilisation, 0)
            named = cells["cell"] + f", {holding}, busy {busy} % of its life"
            frames.append(cells.assign(cell=named, holding=holding))
    cells = pd.concat(frames, ignore_index=True)
    owned = cells[cells["holding"] == "owned"]
    note = (
        f"owned cards carry less than a new H100 in {owned['holds'].sum()} of {len(owned)} cells, "
        "idle ones by definition; total carbon is another matter, see the chapter's regions"
    )
    text = span(owned, "g/Mtoken owned, 0 idle", 1)
    return Finding(
        cells, text, bounds=bounds(cells), evidence="reference", note=note, any_cell=True
    )


def _table_3(study: Study) -> pd.DataFrame:
    speeds = study.table_2.set_index("row")["throughput_tokens_per_s"]
    rows = []
    for assumption, h100_w, consumer_w in _assumptions():
        for (configuration, number), power_w in zip(
            TABLE_3_RUNS.items(), (h100_w, consumer_w), strict=True
        ):
            speed = float(speeds[number])
            rows.append(
                {
                    "configuration": configuration,
                    "board power assumption": assumption,
                    "cell": f"run {number} ({assumption})",
                    "mtoken_per_h": speed * metrics.SECONDS_PER_HOUR / metrics.TOKENS_PER_MTOKEN,
                    "mtoken_per_kwh": metrics.mtoken_per_kwh(power_w, speed),
                    "in_scope": True,
                }
            )
    return pd.DataFrame(rows)


def _assumptions() -> list[tuple[str, float, float]]:
    limit = limit_power_w()
    printed = tuple(PRINTED_POWER_W.values())
    return [
        (AS_PRINTED, printed[0], printed[1]),
        (OWN_LIMIT, limit["h100-pcie"], 2 * limit["rtx-4090"]),
    ]


def _against_printed(
    claim: Claim, study: Study, cells: pd.DataFrame, *, decimals: int, note: str = ""
) -> Finding:
    printed = dict(zip(TABLE_3_RUNS, claim.printed.split("; "), strict=True))
    noise = study.noise["throughput_tokens_per_s"]
    holds = [
        bool(near([value], printed[configuration], noise_frac=noise)[0])
        for configuration, value in zip(cells["configuration"], cells["value"], strict=True)
    ]
    cells = cells.assign(holds=holds, printed=cells["configuration"].map(printed))
    text = "; ".join(rounded(value, decimals) for value in cells["value"])
    return Finding(cells, f"{text} {claim.unit}", bounds=bounds(cells, noise), note=note)
