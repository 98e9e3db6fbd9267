"""Result files as each generation of vLLM's client writes them, for tests and benchmarks."""

import json
from pathlib import Path

from hetinfer.hardware import load_table
from hetinfer.paths import data_dir

Record = dict[str, object]

# Three requests that completed in 2 s, and one that failed. TPOT: 20, 20 and 40 ms.
DETAIL: Record = {
    "input_lens": [10, 20, 30, 40],
    "output_lens": [3, 3, 2, 0],
    "ttfts": [0.1, 0.2, 0.3, 0.0],
    "itls": [[0.01, 0.03], [0.02, 0.02], [0.04], []],
    "generated_texts": ["a", "b", "c", ""],
    "errors": ["", "", "", "Service Unavailable"],
}
TTFT_MS: Record = {"mean_ttft_ms": 200.0, "median_ttft_ms": 200.0, "p99_ttft_ms": 298.0}
TPOT_MS: Record = {"mean_tpot_ms": 80 / 3, "median_tpot_ms": 20.0, "p99_tpot_ms": 39.6}
ITL_MS: Record = {"mean_itl_ms": 24.0, "median_itl_ms": 20.0, "p99_itl_ms": 39.6}
STD_MS: Record = {"std_ttft_ms": 81.64965809277261, "std_tpot_ms": 9.428090415820632}
COUNTS: Record = {"completed": 3, "total_input_tokens": 60, "total_output_tokens": 8}


def first_generation(**changes: object) -> Record:
    """vLLM 0.4: no standard deviations, no total throughput, always the requests in detail."""
    return (
        {"date": "20240601-120000", "backend": "vllm", "model_id": "org/model-7b"}
        | {"tokenizer_id": "org/model-7b", "best_of": 1, "use_beam_search": False}
        | {"num_prompts": 4, "request_rate": "inf", "duration": 2.0}
        | COUNTS
        | {"request_throughput": 1.5, "input_throughput": 30.0, "output_throughput": 4.0}
        | TTFT_MS
        | TPOT_MS
        | ITL_MS
        | DETAIL
        | changes
    )


def study_generation(**changes: object) -> Record:
    """vLLM 0.8: a goodput whose key ends in a colon, metadata as text, no detail."""
    return (
        {"date": "20250610-151148", "backend": "vllm", "model_id": "org/model-7b"}
        | {"tokenizer_id": "org/model-7b", "num_prompts": 4}
        | {"gpu_name": "NVIDIA-H100-PCIe", "gpu_count": "1"}
        | {"request_rate": 16.0, "burstiness": 1.0, "max_concurrency": None, "duration": 2.0}
        | COUNTS
        | {"request_throughput": 1.5, "request_goodput:": 1.0, "output_throughput": 4.0}
        | {"total_token_throughput": 34.0}
        | TTFT_MS
        | TPOT_MS
        | ITL_MS
        | STD_MS
        | changes
    )


def today(**changes: object) -> Record:
    """`vllm bench serve` of 2026: failures counted, goodput null, latencies never left out."""
    return (
        {"date": "20260301-080000", "endpoint_type": "openai", "backend": "openai"}
        | {"label": None, "model_id": "org/model-7b", "tokenizer_id": "org/model-7b"}
        | {"num_prompts": 4, "gpu": "NVIDIA GeForce RTX 4090", "gpu_count": "2"}
        | {"request_rate": "inf", "burstiness": 1.0, "max_concurrency": 2, "duration": 2.0}
        | COUNTS
        | {"failed": 1, "request_throughput": 1.5, "request_goodput": None}
        | {"output_throughput": 4.0, "total_token_throughput": 34.0}
        | {"latencies": [0.14, 0.24, 0.34, 0.0], "max_concurrent_requests": 3, "rtfx": 0.0}
        | TTFT_MS
        | TPOT_MS
        | ITL_MS
        | STD_MS
        | changes
    )


def write(path: Path, *records: Record, between: str = "\n") -> Path:
    """Save records one after the other; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(between.join(map(json.dumps, records)))
    return path


def write_study(folder: Path) -> list[Path]:
    """The study's result files, made again from the recorded runs, byte for byte."""
    table = load_table(data_dir("recorded") / "runs.csv", text=["started", "source_file"])
    return [
        write(folder / str(name), *map(_study_record, rows.to_dict("records")))
        for name, rows in table.sort_values("started").groupby("source_file")
    ]


def _study_record(row: Record) -> Record:
    named = str(row["source_file"]).removesuffix(".json").rsplit("_", 1)[1]
    count, gpu_name = named.split("x", 1)
    record: Record = {
        "date": str(row["started"]).replace("-", "").replace(":", "").replace("T", "-"),
        "backend": row["engine"],
        "model_id": row["model"],
        "tokenizer_id": row["model"],
        "num_prompts": row["prompts"],
        "gpu_name": gpu_name,
        "gpu_count": count,
        "request_rate": row["request_rate_qps"],
        "burstiness": row["burstiness"],
        "max_concurrency": None,
        "duration": row["duration_s"],
        "completed": row["completed"],
        "total_input_tokens": row["input_tokens"],
        "total_output_tokens": row["output_tokens"],
        "request_throughput": row["request_throughput_rps"],
        "request_goodput:": row["request_goodput_rps"],
        "output_throughput": row["output_throughput_tps"],
        "total_token_throughput": row["total_throughput_tps"],
    }
    for name in ("ttft", "tpot", "itl"):
        record |= {f"mean_{name}_ms": row[f"{name}_mean_ms"]}
        record |= {f"median_{name}_ms": row[f"{name}_p50_ms"]}
        for statistic in ("std", "p50", "p90", "p95", "p99", "p100"):
            record |= {f"{statistic}_{name}_ms": row[f"{name}_{statistic}_ms"]}
    return record
