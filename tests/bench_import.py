"""How long `hetinfer import` takes on large result files, and how much memory: `make bench`.

Each is one process, its start included. Exit 1 past a limit.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from result_files import Record, today

BYTES_PER_MB = 1e6
SEED = 42
LATENCIES = ("ttft", "tpot", "itl")


def detailed(requests: int, gaps: int) -> Record:
    """A run of so many requests in detail, each of 200 output tokens, with so many gaps told."""
    rng = np.random.default_rng(SEED)
    inputs, outputs = rng.integers(4, 1024, requests), np.full(requests, 201)
    ttft_s, itl_s = rng.gamma(2, 0.05, requests), rng.gamma(2, 0.005, (requests, gaps))
    duration_s = 2 * requests / 100
    throughput = {"request_throughput": requests / duration_s, "request_rate": 50.0}
    throughput |= {"output_throughput": float(outputs.sum()) / duration_s}
    throughput |= {"total_token_throughput": float((inputs + outputs).sum()) / duration_s}
    lists = {"input_lens": inputs.tolist(), "output_lens": outputs.tolist()}
    lists |= {"ttfts": ttft_s.tolist(), "itls": itl_s.tolist(), "errors": [""] * requests}
    lists |= {"start_times": np.sort(rng.uniform(0, duration_s - 10, requests)).tolist()}
    lists |= {"generated_texts": [""] * requests}
    told = {f"{s}_{name}_ms": None for s in ("mean", "median", "std", "p99") for name in LATENCIES}
    return today(
        num_prompts=requests,
        completed=requests,
        failed=0,
        max_concurrency=None,
        duration=duration_s,
        total_input_tokens=int(inputs.sum()),
        total_output_tokens=int(outputs.sum()),
        latencies=None,
        **throughput,
        **lists,
        **told,
    )


def measure(path: Path) -> tuple[float, float]:
    """Seconds and peak megabytes of one process that imports the file."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "hetinfer", "import", path])
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"import failed: {path}")
    return time.perf_counter() - started, usage.ru_maxrss * 1024 / BYTES_PER_MB


def main() -> None:
    """Make each file, import it, and say how long and how much."""
    within = True
    for requests, gaps, limit_s, limit_mb in (
        (1_000_000, 0, 20.0, 2000.0),
        (10_000, 200, 3.0, None),
    ):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "result.json"
            path.write_text(json.dumps(detailed(requests, gaps)))
            size_mb = path.stat().st_size / BYTES_PER_MB
            seconds, peak_mb = measure(path)
        within &= seconds < limit_s and (limit_mb is None or peak_mb < limit_mb)
        limits = f"limit {limit_s:g} s" + (f", {limit_mb:g} MB" if limit_mb else "")
        print(f"{requests:,} requests, {gaps} gaps each, {size_mb:.0f} MB of JSON:", end=" ")
        print(f"{seconds:.1f} s, {peak_mb:.0f} MB ({limits})", flush=True)
    sys.exit(0 if within else 1)


if __name__ == "__main__":
    main()
