"""What vLLM's client saves of latencies: summaries, and with `--save-detailed` every request.

Beside `vllm_results` the only module that knows its field names.
"""

import math
from dataclasses import asdict, dataclass
from itertools import chain
from typing import cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from hetinfer.records import (
    Floats,
    Record,
    bad_field,
    entries,
    floats,
    has,
    not_negative,
    number,
    whole,
)
from hetinfer.runs import STATISTICS, Latency, percentiles_s

LISTS = ["input_lens", "output_lens", "ttfts"]  # a file without these has no detail
MEAN_TOLERANCE_FRAC = 1e-3  # a mean that was rounded still agrees with that of its requests
PERCENTILES = [name for name in STATISTICS if name.startswith("p")]

Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Detail:
    """A run's requests, and the gaps between messages of all that completed, in one row.

    `gap_counts` says how many of them each request has, shape (n_requests,): 0 where it failed.
    """

    requests: pd.DataFrame
    itl_s: Floats
    gap_counts: Counts


def detail_of(record: Record) -> Detail | None:
    """The record's requests, when it holds them; InputError where they contradict its totals.

    `requests` has the columns that `vllm_results.load_requests` describes.
    """
    if not all(has(record, name) for name in LISTS):
        return None
    count = len(entries(record, LISTS[0]))
    inputs, outputs, ttft_s = (floats(record, name, count) for name in LISTS)
    errors = [str(error or "") for error in entries(record, "errors", count)]
    good = _completed(record, outputs, ttft_s, errors)
    _check_tokens(record, "input", inputs, inputs[good].sum())
    _check_tokens(record, "output", outputs, outputs[good].sum())
    gap_counts, itl_s = _gaps(record, count)
    decode_s = _decode_s(record, ttft_s, gap_counts, itl_s)
    if (decode_s[good] < 0).any():
        raise bad_field(record, "latencies", "one below its ttft", "each at least its ttft")
    tpot_s = np.full(count, np.nan)
    np.divide(decode_s, outputs - 1, out=tpot_s, where=outputs > 1)
    start_s = floats(record, "start_times", count)
    seconds = {"ttft_s": ttft_s, "tpot_s": tpot_s, "e2el_s": ttft_s + decode_s}
    seconds |= {"start_s": start_s - start_s[good].min(initial=np.inf)}
    requests = pd.DataFrame(
        {"request": range(count)}
        | {"input_tokens": inputs.astype(np.int64), "output_tokens": outputs.astype(np.int64)}
        | {name: np.where(good, values, np.nan) for name, values in seconds.items()}
        | {"error": pd.Series(errors, dtype=str)}
    )
    return Detail(requests, itl_s[np.repeat(good, gap_counts)], np.where(good, gap_counts, 0))


def latency_of(record: Record, name: str, detail: Detail | None) -> Latency:
    """The record's own summary of `ttft`, `tpot` or `itl`; what it lacks, from its requests.

    InputError where its mean is not that of its requests.
    """
    stated = Latency(
        **{f"{s}_s": number(record, f"{s}_{name}_ms") / 1000 for s in STATISTICS}
        | {"p50_s": _median_ms(record, name) / 1000}
    )
    known = [value for value in asdict(stated).values() if not math.isnan(value)]
    if known and not any(known):
        stated = Latency()  # vLLM writes zeros where nothing was measured
    values_s = _measured_s(detail, name)
    if not values_s.any():
        return stated
    if name != "tpot":  # the first vLLM counted a stream's last message into it
        _check_mean(record, name, stated.mean_s, float(values_s.mean()))
    return _filled(stated, percentiles_s(values_s))


def _completed(record: Record, outputs: Floats, ttft_s: Floats, errors: list[str]) -> Flags:
    """Which requests completed, shape (n_requests,): those without an error that gave anything.

    A request that gave nothing counts only where the file's own count needs it.
    """
    expected = whole(record, "completed")
    no_error = np.array([not text for text in errors], dtype=bool)
    good = no_error & ((ttft_s > 0) | (outputs > 0))
    for flags in (good, no_error):
        if np.count_nonzero(flags) == expected:
            return flags
    raise bad_field(
        record, "requests in detail", f"{np.count_nonzero(good)} completed", f"{expected}"
    )


def _check_tokens(record: Record, side: str, tokens: Floats, total: float) -> None:
    """Refuse counts, shape (n_requests,), that are not whole or do not sum to the record's."""
    name = f"total_{side}_tokens"
    if (tokens % 1).any():
        raise bad_field(record, f"{side}_lens", f"{tokens[tokens % 1 > 0][0]:g}", "whole numbers")
    if total != whole(record, name):
        expected = f"the {name}, {whole(record, name)}"
        raise bad_field(record, f"sum of {side}_lens", f"{total:.0f}", expected)


def _gaps(record: Record, count: int) -> tuple[Counts, Floats]:
    """How many gaps between tokens each request has, shape (n_requests,), and all of them in s."""
    lists = cast("list[list[float] | None]", entries(record, "itls", count))
    try:
        lengths = np.fromiter((len(gaps or ()) for gaps in lists), np.int64, count)
        flat = np.fromiter(chain.from_iterable(filter(None, lists)), np.float64, lengths.sum())
    except (TypeError, ValueError) as error:
        raise bad_field(record, "itls", str(error), "a list of seconds for each request") from error
    return lengths, not_negative(record, "itls", flat)


def _decode_s(record: Record, ttft_s: Floats, gap_counts: Counts, itl_s: Floats) -> Floats:
    """Time after the first token of each request, shape (n_requests,); NaN where none is told."""
    if has(record, "latencies"):
        return floats(record, "latencies", len(ttft_s)) - ttft_s
    if not itl_s.size:
        return np.full(len(ttft_s), np.nan)
    request = np.repeat(np.arange(len(ttft_s)), gap_counts)
    return np.bincount(request, weights=itl_s, minlength=len(ttft_s)).astype(np.float64)


def _measured_s(detail: Detail | None, name: str) -> Floats:
    """All that the requests tell of a latency, shape (n_values,)."""
    if detail is None:
        return np.empty(0)
    values_s = detail.itl_s if name == "itl" else detail.requests[f"{name}_s"].to_numpy()
    return values_s[~np.isnan(values_s)]


def _median_ms(record: Record, name: str) -> float:
    median, p50 = number(record, f"median_{name}_ms"), number(record, f"p50_{name}_ms")
    if math.isnan(median) or math.isnan(p50):
        return p50 if math.isnan(median) else median
    if not math.isclose(median, p50, rel_tol=MEAN_TOLERANCE_FRAC):
        raise bad_field(
            record, f"median_{name}_ms", f"{median:g}", f"p50_{name}_ms, which is {p50:g}"
        )
    return p50


def _check_mean(record: Record, name: str, stated_s: float, computed_s: float) -> None:
    agrees = math.isclose(stated_s, computed_s, rel_tol=MEAN_TOLERANCE_FRAC)
    if not (agrees or math.isnan(stated_s)):
        expected = f"{computed_s * 1000:g}, the mean of its requests in detail"
        raise bad_field(record, f"mean_{name}_ms", f"{stated_s * 1000:g}", expected)


def _filled(stated: Latency, computed: Latency) -> Latency:
    """The stated summary, its gaps filled; a filled percentile stays between stated neighbours.

    It could leave them by the last message of a stream, which old files count into TPOT.
    """
    known = {name: value for name, value in asdict(stated).items() if not math.isnan(value)}
    filled = asdict(computed) | known
    order = [f"{name}_s" for name in PERCENTILES]
    floor = np.maximum.accumulate([known.get(name, 0.0) for name in order])
    floor[-1] = max(floor[-1], known.get("mean_s", 0.0))
    ceiling = np.minimum.accumulate([known.get(name, math.inf) for name in order[::-1]])[::-1]
    clipped = np.clip([filled[name] for name in order], floor, ceiling)
    return Latency(**filled | dict(zip(order, map(float, clipped), strict=True)) | known)
