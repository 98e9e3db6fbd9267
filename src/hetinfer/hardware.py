"""GPUs, models and prices: figures from outside, each row with its unit, date and source."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from hetinfer.errors import InputError
from hetinfer.paths import data_dir

GPU_MEMORY_FRAC = 0.9  # vLLM's default gpu_memory_utilization
MISSING = ["", "nan", "NaN", "NA"]  # what a table may hold where a number is not known

CPU = "cpu"  # what runs that no GPU served have in its place


@dataclass(frozen=True)
class Gpu:
    """One kind of card. Powers in watts, memory in GB (10^9 bytes), rates per second."""

    gpu: str
    name: str
    aliases: tuple[str, ...]
    tier: str
    tdp_w: float
    memory_gb: float
    memory_bandwidth_gb_per_s: float
    dense_bf16_tflops: float
    interconnect: str
    grade: str
    source: str


@dataclass(frozen=True)
class LanguageModel:
    """One language model. `parameters_b` in 10^9; `kv_bytes_per_token` over all layers."""

    model: str
    parameters_b: float
    parameters_read_per_step_b: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    weight_bytes_per_parameter: float
    kv_bytes_per_token: int
    source: str


def load_table(path: Path, *, text: Collection[str] = ()) -> pd.DataFrame:
    """Read one CSV table; the columns `text` stay as they stand (`0.10`, `NA`).

    A file that is missing, empty or no CSV is an InputError that names it.
    """
    if not path.is_file():
        raise _table_error(path, "table missing", "no file")
    try:
        numbers = pd.read_csv(path, nrows=0).columns.difference(list(text))
        table = pd.read_csv(
            path,
            dtype=dict.fromkeys(text, str),
            keep_default_na=False,
            na_values=dict.fromkeys(numbers, MISSING),
        )
    except (pd.errors.EmptyDataError, pd.errors.ParserError, UnicodeDecodeError) as error:
        raise _table_error(path, "table unreadable", str(error).strip()) from error
    if table.empty:
        raise _table_error(path, "table empty", "0 rows")
    return table


def load_text_table(path: Path) -> pd.DataFrame:
    """Read one CSV table with every cell as its text, since a printed digit is a precision."""
    load_table(path)
    return pd.read_csv(path, dtype=str, keep_default_na=False)


@cache
def load_gpus() -> dict[str, Gpu]:
    """Every known card, by its short name (`h100-pcie`, `rtx-4090`, ...)."""
    table = load_table(data_dir("reference") / "gpus.csv", text=["aliases"])
    return {
        row["gpu"]: Gpu(**row | {"aliases": tuple(filter(None, row["aliases"].split(";")))})
        for row in table.to_dict("records")
    }


@cache
def load_models() -> dict[str, LanguageModel]:
    """Every known model, by its full name on the hub."""
    table = load_table(data_dir("reference") / "models.csv")
    return {row["model"]: LanguageModel(**row) for row in table.to_dict("records")}


def find_gpu(name: str) -> Gpu:
    """The card that `name` means: a short name, or what drivers and result files call it.

    Raises InputError for an unknown card; the line lists the known ones.
    """
    gpus = load_gpus()
    wanted = _spelling(name)
    for gpu in gpus.values():
        if wanted in {_spelling(gpu.gpu), _spelling(gpu.name), *map(_spelling, gpu.aliases)}:
            return gpu
    raise InputError(
        "unknown GPU",
        got=repr(name),
        expected=f"one of {', '.join(gpus)}",
        where="data/reference/gpus.csv",
        do="add a row for it there, with its names in the column aliases",
    )


def device_name(name: str) -> str:
    """The short name of the card that `name` means, or `cpu` for none; InputError for another."""
    return CPU if name.lower() == CPU else find_gpu(name).gpu


def find_model(name: str) -> LanguageModel:
    """The model that `name` means: its full name, or the part behind the slash.

    Raises InputError for an unknown model; the line lists the known ones.
    """
    models = load_models()
    for model in models.values():
        if name.lower() in {model.model.lower(), short_name(model.model).lower()}:
            return model
    raise InputError(
        "unknown model",
        got=repr(name),
        expected=f"one of {', '.join(map(short_name, models))}",
        where="data/reference/models.csv",
        do="add a row for it there",
    )


def short_name(model: str) -> str:
    """The part of a model's name behind the slash: what tables and figures show."""
    return model.rsplit("/", 1)[-1]


def configuration_label(gpu: str, gpu_count: int) -> str:
    """A configuration as legends and tables name it: `2x 4090`, `1x H100`."""
    names = {"h100-pcie": "H100", "rtx-4090": "4090"}
    return f"{gpu_count}x {names.get(gpu, gpu)}"


def load_prices(scenario: str = "study-2025") -> dict[str, float]:
    """One price list: USD per GPU-hour by GPU, from the rows of `prices.csv` of that scenario.

    Raises InputError for an unknown scenario or a price that is not positive.
    """
    table = load_table(data_dir("reference") / "prices.csv")
    known = sorted(table["scenario"].dropna().unique())
    rows = table[table["scenario"] == scenario]
    if rows.empty:
        raise InputError(
            "unknown price scenario",
            got=repr(scenario),
            expected=f"one of {', '.join(known)}",
            where="data/reference/prices.csv",
            do="name one of these, or give rows of that file a scenario of their own",
        )
    prices = dict(zip(rows["gpu"], rows["price_usd_per_h"].astype(float), strict=True))
    for gpu, price in prices.items():
        check_price(price, where=f"data/reference/prices.csv, {gpu}, {scenario}")
    return prices


def load_price_scenarios() -> dict[str, dict[str, float]]:
    """Every price list of `prices.csv` that has a scenario, by its name, the study's first."""
    table = load_table(data_dir("reference") / "prices.csv")
    return {name: load_prices(name) for name in table["scenario"].dropna().unique()}


def check_price(price_usd_per_h: float, *, where: object) -> float:
    """The price itself when it is a positive finite number; InputError otherwise."""
    if not (np.isfinite(price_usd_per_h) and price_usd_per_h > 0):
        raise InputError(
            "price not positive",
            got=price_usd_per_h,
            expected="USD per GPU-hour above 0",
            where=where,
            do="correct it",
        )
    return price_usd_per_h


def kv_capacity_tokens(model: str, gpu: str, gpu_count: int) -> float:
    """Tokens that the KV cache can hold: (u M n - W) / k, or 0 where the weights do not fit.

    u = 0.9 is the share of memory that vLLM takes by default, M one card's memory, n their number,
    W the bytes of all weights, k the KV bytes per token. Activations, graphs and the driver's own
    share are left out, so it is an upper bound. Source: vLLM's `gpu_memory_utilization`.
    """
    language_model, card = find_model(model), find_gpu(gpu)
    weights = language_model.parameters_b * 1e9 * language_model.weight_bytes_per_parameter
    free = GPU_MEMORY_FRAC * card.memory_gb * 1e9 * gpu_count - weights
    return max(0.0, free / language_model.kv_bytes_per_token)


def _table_error(path: Path, what: str, got: str) -> InputError:
    return InputError(
        what,
        got=got,
        expected="a CSV table with at least one row",
        where=path,
        do="restore it with git checkout, or write it again",
    )


def _spelling(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
