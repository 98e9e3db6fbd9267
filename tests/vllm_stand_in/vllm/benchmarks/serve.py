"""A client that sends every request at once, and writes the result that vLLM's would.

VLLM_STAND_IN_S is how long that takes.
"""

import json
import os
import random
import time
import urllib.error
import urllib.request
from datetime import datetime
from pathlib import Path


def add_cli_args(parser):
    for name in ("base-url", "model", "result-dir", "result-filename"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--num-prompts", type=int)
    parser.add_argument("--request-rate", type=float)
    parser.add_argument("--seed", type=int)
    parser.parse_args = lambda known=parser.parse_known_args: known()[0]


def main(args):
    errors = [send(args) for _ in range(args.num_prompts)]
    time.sleep(float(os.environ.get("VLLM_STAND_IN_S", 0)))
    good = [not error for error in errors]
    gap_s = 1 / args.request_rate
    result = {
        "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
        "backend": "vllm",
        "model_id": args.model,
        "tokenizer_id": args.model,
        "num_prompts": args.num_prompts,
        "request_rate": args.request_rate if gap_s else "inf",
        "burstiness": 1.0,
        "duration": args.num_prompts * gap_s + 1 + random.random() / 1e6,
        "completed": sum(good),
        "failed": len(good) - sum(good),
        "total_input_tokens": 20 * sum(good),
        "total_output_tokens": 4 * sum(good),
        "input_lens": [20 * ok for ok in good],
        "output_lens": [4 * ok for ok in good],
        "ttfts": [0.05 * ok for ok in good],
        "itls": [[0.01] * 3 * ok for ok in good],
        "start_times": [time.perf_counter() + gap_s * number for number in range(len(good))],
        "generated_texts": ["word " * 4] * len(good),
        "errors": errors,
    }
    (Path(args.result_dir) / args.result_filename).write_text(json.dumps(result))


def send(args):
    try:
        with urllib.request.urlopen(f"{args.base_url}/v1/completions", data=b"{}", timeout=5):
            return ""
    except (OSError, urllib.error.HTTPError) as error:
        return f"request failed: {error}"
