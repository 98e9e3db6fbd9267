"""Simulated requests per second of a fleet of twenty engines, by policy, on one core.

python tests/bench_fleet.py [requests]
"""

import sys
import time

import numpy as np

from bench_engine import ENGINE
from hetinfer.fleet.demand import ServiceClass, spread_lengths, steady_workload
from hetinfer.fleet.routing import POLICIES
from hetinfer.fleet.simulation import Member, Router, simulate_fleet

SLOWER = 20  # engines
LENGTHS = spread_lengths(208, 208, longest=1024)
CLASSES = [
    ServiceClass("chat", LENGTHS, ttft_target_s=0.5, tpot_target_s=0.1),
    ServiceClass("batch", LENGTHS, ttft_target_s=30.0),
]
MEMBERS = [Member(f"engine {number}", ENGINE, number % 2, 7000.0) for number in range(SLOWER)]


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    for rate in (8.0, 14.0):
        total = rate * len(MEMBERS)
        for policy in POLICIES:
            workload, small = (
                steady_workload(CLASSES, [total / 2] * 2, size / total, np.random.default_rng(0))
                for size in (n, 200)
            )
            router = Router(policy, (0, 1))
            simulate_fleet(small, MEMBERS, router)  # compiles, or reads what was compiled
            start_s = time.perf_counter()
            run = simulate_fleet(workload, MEMBERS, router)
            took_s = time.perf_counter() - start_s
            print(
                f"{policy:<14}{rate:>4.0f} requests/s an engine: {run.end.size / took_s:>9,.0f}/s"
            )


if __name__ == "__main__":
    main()
