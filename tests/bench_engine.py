"""Simulated requests per second: the compiled event loop beside its plain twin, in one run.

    python tests/bench_engine.py [requests]

14B on one H100 at 16 requests per second, mean prompt and answer of 208 tokens.
"""

import resource
import sys
import time

import numpy as np

from hetinfer.simulation.engine import Engine, FrontEnd, simulate_engine
from hetinfer.simulation.step_time import StepTime
from hetinfer.workload import Requests, fresh_requests, poisson_arrivals_s
from plain_twin import serve

RATE_REQUESTS_PER_S = 16.0
STEP = StepTime(
    launch_s=3.3e-3, weights_s=15.4e-3, compute_s=8.1e-5, sequence_s=2.3e-5, context_s=1.4e-7
)
ENGINE = Engine(216_000, 1024, 8192, STEP, FrontEnd(receive_s=6e-3, token_s=5e-5))


def bench_requests(n: int) -> Requests:
    rng = np.random.default_rng(42)
    prompt = np.clip(rng.lognormal(np.log(208) - 1.25**2 / 2, 1.25, n), 4, 1024)
    output = np.clip(rng.gamma(0.9, 208 / 0.9, n), 1, 1024)
    return fresh_requests(poisson_arrivals_s(n, RATE_REQUESTS_PER_S, rng), prompt, output)


def timed(serving, n: int) -> str:
    requests = bench_requests(n)
    start_s = time.perf_counter()
    steps = serving(requests, ENGINE).steps
    took_s = time.perf_counter() - start_s
    return f"{n:>9,} requests, {steps:>9,} steps: {n / took_s:>9,.0f} simulated requests per s"


def main() -> None:
    largest = int(sys.argv[1]) if len(sys.argv) > 1 else 500_000
    simulate_engine(bench_requests(10), ENGINE)  # compiles, or reads what was compiled
    print("plain twin ", timed(serve, 500))
    for n in (5_000, largest):
        print("event loop ", timed(simulate_engine, n))
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(f"largest memory: {peak_gb:.2f} GB")


if __name__ == "__main__":
    main()
