"""What this host reaches with torch: matrix products, memory copies, a step's overhead, all-reduce.

About two minutes give a profile that a simulator can start from. This file is also the script that
measures: it runs in the interpreter that has torch, and needs nothing else of this package there.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

DTYPES = ("bfloat16", "float16")
MATRIX_SIZE = {"cuda": 8192, "cpu": 512}  # large enough to reach the plateau
COPY_BYTES = {"cuda": 2**30, "cpu": 2**27}  # far beyond the caches
REDUCE_BYTES = (2**14, 2**20, 2**26)  # a token's activations, a batch's, a long prefill's
STEP_KERNELS = 300  # about as many as a decode step of a 28-layer model launches
REPEATS = 7
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Roofline:
    """What one host reached; None for what it cannot do.

    `matmul_flops_per_s` by number format and `copy_bytes_per_s` (read and write together) are
    medians of repeats. `step_overhead_s` is the time of launching a decode step's kernels on
    nothing. `all_reduce_s` is by message size in bytes, over `ranks` GPUs, or processes on a CPU.
    """

    device: str
    name: str
    torch: str
    matmul_flops_per_s: dict[str, float]
    copy_bytes_per_s: float
    step_overhead_s: float
    ranks: int
    backend: str
    all_reduce_s: dict[str, float]


def measure_roofline(interpreter: Path, ranks: int = 0) -> Roofline:
    """Measure this host with the interpreter that has torch; `ranks` 0 means every GPU it has.

    Raises InputError if the interpreter is missing, has no torch, or the measurement fails.
    """
    command = [str(interpreter), "-P", __file__, "--ranks", str(ranks)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
    except FileNotFoundError:
        raise _failed(interpreter, "no interpreter") from None
    except subprocess.TimeoutExpired:
        raise _failed(interpreter, f"no end in {TIMEOUT_S:g} s") from None
    except subprocess.CalledProcessError as error:
        said = [line for line in str(error.stderr).splitlines() if line.strip()]
        raise _failed(interpreter, said[-1] if said else f"exit code {error.returncode}") from None
    return Roofline(**json.loads(done.stdout.splitlines()[-1]))


def roofline_text(found: Roofline) -> str:
    """The profile as JSON, one field a line."""
    return json.dumps(asdict(found), indent=1)


def profile(ranks: int) -> Roofline:
    """The profile of the host that this process runs on; needs torch."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    ranks = ranks or (torch.cuda.device_count() if device == "cuda" else 1)
    backend = "nccl" if device == "cuda" else "gloo"
    return Roofline(
        device=device,
        name=torch.cuda.get_device_name(0) if device == "cuda" else "CPU",
        torch=torch.__version__,
        matmul_flops_per_s=dict(zip(DTYPES, _matmul_flops_per_s(device), strict=True)),
        copy_bytes_per_s=_copy_bytes_per_s(device),
        step_overhead_s=_step_overhead_s(device),
        ranks=ranks,
        backend=backend if ranks > 1 else "",
        all_reduce_s=_all_reduce_s(ranks, backend) if ranks > 1 else {},
    )


def _matmul_flops_per_s(device: str) -> list[float]:
    import torch

    size = MATRIX_SIZE[device]
    rates = []
    for dtype in DTYPES:
        a, b = (torch.randn(size, size, device=device).to(getattr(torch, dtype)) for _ in range(2))
        taken_s = _median_s(lambda a=a, b=b: torch.mm(a, b), device)  # type: ignore[misc]
        rates.append(2 * size**3 / taken_s)
    return rates


def _copy_bytes_per_s(device: str) -> float:
    import torch

    source = torch.empty(COPY_BYTES[device], dtype=torch.uint8, device=device).zero_()
    target = torch.empty_like(source)
    return 2 * COPY_BYTES[device] / _median_s(lambda: target.copy_(source), device)


def _step_overhead_s(device: str) -> float:
    import torch

    tiny = torch.zeros(1, device=device)

    def step() -> None:
        for _ in range(STEP_KERNELS):
            tiny.add_(1)

    return _median_s(step, device)


def _median_s(work: Callable[[], Any], device: str) -> float:
    """Median time of the work in seconds, after two runs that warm up."""
    import torch

    times_s = []
    for _ in range(REPEATS + 2):
        began_s = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times_s.append(time.perf_counter() - began_s)
    return statistics.median(times_s[2:])


def _all_reduce_s(ranks: int, backend: str) -> dict[str, float]:
    """Median time of summing a message over all ranks, by its bytes; each rank is a process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared |= {"WORLD_SIZE": str(ranks), "HETINFER_BACKEND": backend}
    processes = [
        subprocess.Popen(
            [sys.executable, "-P", __file__, "--rank", str(rank)],
            env={**shared, "RANK": str(rank)},
            stdout=subprocess.PIPE,
        )
        for rank in range(ranks)
    ]
    outputs = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
    if any(process.returncode for process in processes):
        sys.exit(f"all-reduce over {ranks} ranks by {backend} failed")
    times_s: dict[str, float] = json.loads(outputs[0].splitlines()[-1])
    return times_s


def _reduce_as(rank: int) -> dict[str, float]:
    import torch
    import torch.distributed as distributed

    backend = os.environ["HETINFER_BACKEND"]
    device = f"cuda:{rank}" if backend == "nccl" else "cpu"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    distributed.init_process_group(backend)
    times_s = {}
    for size in REDUCE_BYTES:
        message = torch.zeros(size // 4, dtype=torch.float32, device=device)
        times_s[str(size)] = _median_s(
            lambda message=message: distributed.all_reduce(message),  # type: ignore[misc]
            device.partition(":")[0],
        )
    distributed.destroy_process_group()
    return times_s


def _failed(interpreter: Path, got: str) -> Exception:
    from hetinfer.errors import InputError  # not where this file runs as a script

    return InputError(
        "roofline",
        got=got,
        expected="a measurement with torch",
        where=interpreter,
        do="run make vllm-cpu or make vllm-gpu, or name another with --python",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--rank", type=int)
    arguments = parser.parse_args()
    found = (
        asdict(profile(arguments.ranks)) if arguments.rank is None else _reduce_as(arguments.rank)
    )
    print(json.dumps(found))
