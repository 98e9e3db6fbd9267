"""Evidence on what is printed: tables, figures, scope and protocol."""

import pandas as pd

from hetinfer.claims.rule import Claim, Finding, near
from hetinfer.claims.study import Study, bounds, labelled
from hetinfer.hardware import load_models, short_name
from hetinfer.published import PAPER, README, compare_cells, rows_printing, untabulated
from hetinfer.recorded import run_order, warm_cache_table, with_window
from hetinfer.values import rounded


def s22(claim: Claim, study: Study) -> Finding:
    """Figure 1's point and label of 2x4090 at 32 requests/s against run 18."""
    point, label = claim.printed.split("; ")
    run = study.table_2.set_index("row").loc[18]
    rows = []
    for what, text, column in (
        ("point", point, "throughput_requests_per_s"),
        ("label", label, "cost_usd_per_mtoken"),
    ):
        origin = rows_printing(text, column, study.table_2)
        rows.append(
            {
                "cell": f"{what} {text}",
                "value": float(run[column]),
                "printed": text,
                "rows_that_print_it": ", ".join(map(str, origin)),
                "holds": bool(near([run[column]], text)[0]),
                "in_scope": True,
            }
        )
    cells = pd.DataFrame(rows)
    note = f"both printed values are those of row {cells['rows_that_print_it'].iloc[0]} (4x4090)"
    recomputed = (
        f"{rounded(cells['value'].iloc[0], 2)} requests/s; "
        f"{rounded(cells['value'].iloc[1], 3)} USD/Mtoken"
    )
    return Finding(cells, recomputed, note=note)


def s23(_: Claim, study: Study) -> Finding:
    """Figure 1's point of four 2x4090 nodes: four times which row?"""
    rows = study.table_2.set_index("row")["throughput_requests_per_s"]
    recomputed = (
        f"4 x row 6 (2x) = {rounded(4 * rows[6], 2)}; 4 x row 7 (4x) = {rounded(4 * rows[7], 2)}"
    )
    note = "no run of several nodes exists"
    return Finding(pd.DataFrame(), recomputed, evidence="printed", note=note)


def s24(_: Claim, study: Study) -> Finding:
    """Cells of the paper's Table 2 that the recorded runs bear out."""
    cells = _printed_cells(study, PAPER)
    second = cells.loc[cells["replicate"] == 2, "row"].unique()
    note = f"row {', '.join(second)} is the second replicate, every other row the first"
    return Finding(cells, _agreeing(cells), note=note)


def s25(_: Claim, study: Study) -> Finding:
    """Cells of the repository's tables that the recorded runs bear out."""
    cells = _printed_cells(study, README)
    return Finding(cells, _agreeing(cells))


def s26(_: Claim, study: Study) -> Finding:
    """Whether every configuration of the tabulated models has a run at every rate."""
    models = set(study.printed["model"])
    runs = study.cells[study.cells["model"].map(short_name).isin(models)]
    grid = runs[["model", "gpu", "gpu_count"]].drop_duplicates()
    grid = grid.merge(runs[["rate_requests_per_s"]].drop_duplicates(), how="cross")
    found = grid.merge(runs, how="left", on=list(grid.columns))
    cells = labelled(found, found["throughput_requests_per_s"])
    cells["holds"] = cells["value"].notna()
    unlisted = untabulated(study.printed, study.runs)
    by = unlisted.groupby(["model", "gpu_count"])["rate_requests_per_s"]
    named = [
        f"{model} {count}x4090 at {', '.join(f'{q:g}' for q in rates)}"
        for (model, count), rates in by
    ]
    recomputed = f"{len(unlisted)} of {len(cells)} recorded cells are in no table"
    return Finding(cells, recomputed, note="not tabulated: " + "; ".join(named))


def s32(_: Claim, study: Study) -> Finding:
    """Models with runs on both GPUs, and their size in 10^9 parameters."""
    runs = study.runs
    gpus = runs.groupby("model", sort=False)["gpu"].nunique()
    size = {name: model.parameters_b for name, model in load_models().items()}
    cells = pd.DataFrame(
        {
            "model": [short_name(name) for name in gpus.index],
            "cell": [short_name(name) for name in gpus.index],
            "value": [size[name] for name in gpus.index],
            "holds": gpus.to_numpy() == 2,
            "in_scope": True,
        }
    )
    both = cells[cells["holds"]]
    recomputed = (
        f"{len(both)} of {len(cells)} models on both; largest {rounded(both['value'].max(), 1)} B"
    )
    note = "70B models ran on 2x H100 only; 4090 configurations differ from the H100's in GPU count"
    return Finding(cells, recomputed, bounds=bounds(cells[cells["holds"]]), note=note)


def s33(_: Claim, study: Study) -> Finding:
    """Prompts, burstiness, and duration less the replayed arrival gaps, in s, of every run."""
    runs = with_window(study.runs)
    cells = labelled(runs, runs["beyond_window_s"])
    as_said = (runs["prompts"] == 200) & (runs["burstiness"] == 1)
    cells["holds"] = as_said.to_numpy() & (cells["value"] >= 0)
    orders = run_order(study.runs)["order"].value_counts()
    warm = warm_cache_table(study.runs)
    replayed = int((~warm["first_of_sequence"]).sum())
    held = int((warm["expected"] == "warm").sum())
    note = (
        f"rates were run in the order {orders.index[0]} in {orders.iloc[0]} of {orders.sum()} "
        f"sequences; {replayed} runs sent prompts their server had seen, {held} of them to a cache "
        "that could hold them"
    )
    recomputed = f"{int(cells['holds'].sum())} of {len(cells)} runs as stated"
    return Finding(cells, recomputed, bounds=bounds(cells), note=note)


def s39(_: Claim, study: Study) -> Finding:
    """The cheapest simulated fleet of each case: mixed and cheaper than either tier alone?"""
    if study.fleets is None:
        return Finding(
            pd.DataFrame(),
            "",
            evidence="simulated",
            note="the study runs no mixed fleet, and none was simulated in this build",
        )
    fleets = study.fleets
    names = fleets["model"] + ", " + fleets["mix"] + ", " + fleets["latency"] + " targets"
    cells = pd.DataFrame(
        {
            "model": fleets["model"],
            "traffic mix": fleets["mix"],
            "latency target": fleets["latency"],
            "prices": fleets["prices"],
            "cell": names + ", " + fleets["prices"],
            "value": fleets["saved_frac"],
            "best_fleet": fleets["best_fleet"],
            "holds": fleets["mixed"].to_numpy(bool),
            "in_scope": True,
        }
    )
    recomputed = f"{int(cells['holds'].sum())} of {len(cells)} cases are cheapest mixed"
    consumer, enterprise = (int(fleets["kind"].eq(k).sum()) for k in ("consumer", "enterprise"))
    note = (
        f"4090s alone are cheapest in {consumer} cases, H100s alone in {enterprise}; "
        "every fleet keeps its targets in simulation; value: saved against H100s alone"
    )
    return Finding(cells, recomputed, bounds(cells), evidence="simulated", note=note)


def _printed_cells(study: Study, source: str) -> pd.DataFrame:
    cells = compare_cells(study.printed[study.printed["source"] == source], study.runs)
    names = cells["run_id"] + " " + cells["column"]
    return cells.rename(columns={"recomputed": "value", "agrees": "holds"}).assign(
        cell=names, in_scope=True
    )


def _agreeing(cells: pd.DataFrame) -> str:
    return f"{int(cells['holds'].sum())} of {len(cells)} cells"
