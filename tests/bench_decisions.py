"""Seconds of what a reader waits for: a plan, a footprint, a slider; and what sampling power costs.

python tests/bench_decisions.py
"""

import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hetinfer import explorer, published
from hetinfer.fleet.demand import daily_rates
from hetinfer.fleet.planning import Demand, plan_fleet
from hetinfer.footprint import carbon, comparison, findings
from hetinfer.hardware import load_prices
from hetinfer.metrics import with_costs
from hetinfer.runs import load_recorded
from nvml_stand_in import build_stand_in, run_with
from test_planning import CHAT, CONSUMER, capacities

SAMPLING = """
import json, time
from hetinfer.measurement.power import sampling
with sampling([0, 1] * 4) as log:
    before_s = time.process_time()
    time.sleep(5)
    cost_s = time.process_time() - before_s
print(json.dumps({"cost_frac": cost_s / 5}))
"""


def seconds(work: Callable[[], object]) -> float:
    work()  # the first run loads libraries
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s


def plan_a_day() -> object:
    rng = np.random.default_rng(0)
    classes = tuple(dataclasses.replace(CHAT, name=f"class {n}") for n in range(3))
    demand = Demand(classes, np.array([daily_rates(peak) for peak in (50, 20, 80)]))
    offers = [dataclasses.replace(CONSUMER, usd_per_h=price) for price in rng.uniform(0.2, 3, 8)]
    return plan_fleet(demand, offers, capacities(rng.uniform(1, 20, (8, 3))))


def compare_footprints() -> None:
    runs = with_costs(load_recorded(), load_prices())
    table_2 = published.table_2_runs(published.load_published_tables(), runs)
    pairs = comparison.equal_work(runs, ttft_target_s=2.0)
    rng = np.random.default_rng(0)
    cards, base = carbon.sample_machines(("rtx-4090", "h100-pcie"), 10_000, rng).values()
    findings.energy_findings(table_2, pairs, n_samples=10_000, noise_frac=0.003, rng=rng)
    findings.crossing_findings(pairs, cards, base, boundary="machine", power="measured draw")


def move_sliders() -> None:
    mix = {"chat": 5, "development": 1, "batch": 4}
    model, target_s = "DeepSeek-R1-Distill-Qwen-14B", 0.5
    study = explorer.scenario_of(model, 16.0, "study-2025", ttft_target_s=target_s, mix=mix)
    widget = explorer.show_explorer(explorer.load_cells(), study)
    named = {part.description: part for box in widget.children[0].children for part in box.children}
    moves = {
        "4090, USD/h": 0.5,
        "batch": 80,
        "agents": 20,
        "model": "DeepSeek-R1-Distill-Qwen-1.5B",
    }
    for name, value in moves.items():
        start_s = time.perf_counter()
        named[name].value = value
        print(f"{name} moved, fleet planned and drawn: {time.perf_counter() - start_s:.2f} s")


def main() -> None:
    print(f"plan of 8 configurations, 3 classes, 24 hours: {seconds(plan_a_day):.2f} s")
    print(f"footprints compared, 10,000 samples: {seconds(compare_footprints):.2f} s")
    move_sliders()
    with tempfile.TemporaryDirectory() as folder:
        found = run_with(build_stand_in(Path(folder)), SAMPLING)
    print(f"sampling the power of eight cards: {100 * found['cost_frac']:.2f} % of a core")


if __name__ == "__main__":
    main()
