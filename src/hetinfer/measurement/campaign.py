"""A campaign: one TOML file that says which runs to make, and the runs it says.

A *series* is one server's life: one variant, model, configuration and replicate, at every rate in
turn. A *cell* is one run of it.
"""

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from hetinfer.errors import InputError
from hetinfer.hardware import LanguageModel, device_name, find_model, short_name
from hetinfer.measurement.client import Dataset
from hetinfer.measurement.dummy_model import describe_dummy, is_dummy
from hetinfer.paths import data_dir, root_dir, sha256_of

SEED_STEP = 1000  # between the seeds of a series' runs where each has fresh prompts
ORDERS = ("listed", "random")
NEEDED = ("title", "configurations", "rates_requests_per_s", "seeds", "dataset")


@dataclass(frozen=True)
class Variant:
    """One arm of an experiment: flags of its own, and whether every run gets fresh prompts."""

    name: str = "default"
    server_flags: tuple[str, ...] = ()
    fresh_prompts: bool = False


@dataclass(frozen=True)
class Campaign:
    """What a campaign's file says; data/campaigns/README.md explains each key.

    Either `prompts` is given, or `window_s`, and a run sends `window_s` times its rate.
    """

    name: str
    title: str
    configurations: tuple[tuple[str, str, int], ...]  # model, GPU, count
    rates_requests_per_s: tuple[float, ...]
    seeds: tuple[int, ...]
    dataset: Dataset
    prompts: int = 0
    window_s: float = 0.0
    rate_order: str = "listed"
    burstiness: float = 1.0
    dtype: str = "auto"
    variants: tuple[Variant, ...] = (Variant(),)
    server_flags: tuple[str, ...] = ()
    client_flags: tuple[str, ...] = ()
    server_env: tuple[tuple[str, str], ...] = ()
    ttft_targets_s: tuple[float, ...] = (2.0,)
    tpot_targets_s: tuple[float, ...] = ()
    warmup_s: float = 0.0
    drain_s: float = 0.0
    differences: tuple[str, ...] = ()
    sha256: str = ""


@dataclass(frozen=True)
class Cell:
    """One run of a campaign. `name` is its file's name; `position` counts from 0 in its series."""

    name: str
    variant: Variant
    model: str
    gpu: str
    gpu_count: int
    rate_requests_per_s: float
    prompts: int
    replicate: int
    seed: int
    position: int


@dataclass(frozen=True)
class Series:
    """The cells that one server serves, in the order in which it serves them."""

    name: str
    cells: tuple[Cell, ...]


def campaign_file(name: str) -> Path:
    """The file of a campaign: a path to a TOML file, or the name of one in `data/campaigns`."""
    if name.endswith(".toml"):
        return Path(name)
    return data_dir("campaigns") / f"{name}.toml"


def load_campaign(name: str) -> Campaign:
    """Read a campaign by name or path.

    Raises InputError for a missing file, and for a key or a value that cannot be meant.
    """
    path = campaign_file(name)
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in data_dir("campaigns").glob("*.toml")))
        raise InputError(
            "unknown campaign",
            got=repr(name),
            expected=f"one of {known}, or the path of a .toml file",
            where=path,
            do="correct the name",
        )
    try:
        told = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise _bad(path, "TOML", str(error), "a file that tomllib reads") from None
    return _campaign(path, told)


def all_series(campaign: Campaign) -> list[Series]:
    """Every series of a campaign; replicates outermost, so that slow drift touches all alike."""
    products = itertools.product(
        enumerate(campaign.seeds, 1), campaign.configurations, campaign.variants
    )
    return [
        _series(campaign, variant, configuration, replicate)
        for replicate, configuration, variant in products
    ]


def all_cells(campaign: Campaign) -> list[Cell]:
    """Every cell of a campaign, in the order in which one machine runs them."""
    return [cell for series in all_series(campaign) for cell in series.cells]


def find_cell(campaign: Campaign, name: str) -> Cell:
    """The cell of that name, or the first one for an empty name; InputError lists some others."""
    cells = {cell.name: cell for cell in all_cells(campaign)}
    if name and name not in cells:
        raise InputError(
            "unknown cell",
            got=repr(name),
            expected=f"a name such as {next(iter(cells))}",
            where=f"campaign {campaign.name}",
            do=f"see hetinfer measure {campaign.name} --dry-run",
        )
    return cells[name or next(iter(cells))]


def describe_model(model: str) -> LanguageModel:
    """The sizes of a model that a campaign names, dummy or known; InputError for another."""
    return describe_dummy(model) if is_dummy(model) else find_model(model)


def _series(
    campaign: Campaign,
    variant: Variant,
    configuration: tuple[str, str, int],
    replicate: tuple[int, int],
) -> Series:
    number, seed = replicate
    model, gpu, count = configuration
    stem = f"{short_name(model)}_{count}x{gpu}_{variant.name}"
    rates = list(enumerate(campaign.rates_requests_per_s))
    if campaign.rate_order == "random":
        order = np.random.default_rng(seed).permutation(len(rates))
        rates = [rates[place] for place in order]
    cells = tuple(
        Cell(
            name=f"{stem}_{rate:g}qps_r{number}",
            variant=variant,
            model=model,
            gpu=gpu,
            gpu_count=count,
            rate_requests_per_s=rate,
            prompts=campaign.prompts or round(campaign.window_s * rate),
            replicate=number,
            seed=seed + SEED_STEP * (listed + 1) if variant.fresh_prompts else seed,
            position=position,
        )
        for position, (listed, rate) in enumerate(rates)
    )
    return Series(f"{stem}_r{number}", cells)


def _campaign(path: Path, told: Mapping[str, Any]) -> Campaign:
    missing = [key for key in NEEDED if key not in told]
    if missing:
        raise _bad(path, "key missing", "none", missing[0])
    tables = {
        "configurations": [c for row in told["configurations"] for c in _configurations(path, row)],
        "dataset": _dataset(path, told["dataset"]),
        "variants": [_record(path, Variant, row) for row in told.get("variants", [{}])],
        "server_env": [list(pair) for pair in told.get("server_env", {}).items()],
    }
    return _checked(
        path,
        _record(path, Campaign, {**told, **tables, "name": path.stem, "sha256": sha256_of(path)}),
    )


def _checked(path: Path, campaign: Campaign) -> Campaign:
    named = [(short_name(model), gpu, count) for model, gpu, count in campaign.configurations]
    _distinct(path, "configurations", named)
    _distinct(path, "seeds", campaign.seeds)
    _distinct(path, "variants", [v.name for v in campaign.variants])
    _distinct(path, "rates_requests_per_s", campaign.rates_requests_per_s)
    for model, _, count in campaign.configurations:
        describe_model(model)
        if count < 1:
            raise _bad(path, "counts", count, "1 or more")
    if min(campaign.rates_requests_per_s) <= 0:
        raise _bad(path, "rate", min(campaign.rates_requests_per_s), "above 0, or inf")
    if (campaign.prompts > 0) == (campaign.window_s > 0):
        got = f"{campaign.prompts} and {campaign.window_s}"
        raise _bad(path, "prompts and window_s", got, "one of the two above 0")
    if campaign.rate_order not in ORDERS:
        raise _bad(path, "rate_order", campaign.rate_order, f"one of {', '.join(ORDERS)}")
    return campaign


def _record(path: Path, kind: type[Any], told: Mapping[str, Any]) -> Any:
    """One of the records above from what the file tells, every key known and every type right."""
    hints = get_type_hints(kind)
    values = {key: _frozen(value) for key, value in told.items()}
    for key, value in values.items():
        if key not in hints:
            raise _bad(path, "unknown key", key, f"one of {', '.join(hints)}")
        if not _fits(value, hints[key]):
            raise _bad(path, key, repr(told[key]), str(hints[key]).replace("tuple", "list"))
    missing = [f.name for f in fields(kind) if f.default is MISSING and f.name not in values]
    if missing:
        raise _bad(path, "key missing", "none", missing[0])
    return kind(**values)


def _fits(value: object, hint: Any) -> bool:
    """Whether a value has the type of a field's annotation; a whole number is a float too."""
    if get_origin(hint) is tuple:
        kinds = get_args(hint)
        if not isinstance(value, tuple):
            return False
        if kinds[-1] is Ellipsis:
            return all(_fits(item, kinds[0]) for item in value)
        return len(value) == len(kinds) and all(map(_fits, value, kinds))
    if isinstance(value, bool) or hint is bool:
        return isinstance(value, bool) and hint is bool
    return isinstance(value, (int, float) if hint is float else hint)


def _dataset(path: Path, told: Mapping[str, Any]) -> Dataset:
    dataset: Dataset = _record(path, Dataset, told)
    if dataset.path and not Path(dataset.path).is_absolute():
        return replace(dataset, path=str(root_dir() / dataset.path))
    return dataset


def _configurations(path: Path, row: Mapping[str, Any]) -> list[list[Any]]:
    """Each model with each count of a GPU, as one `[[configurations]]` table means."""
    lists = [row.get("models"), row.get("counts")]
    if set(row) != {"models", "gpu", "counts"} or not all(isinstance(x, list) for x in lists):
        raise _bad(path, "configurations", dict(row), "models and counts, lists, and gpu, a name")
    gpu = device_name(str(row["gpu"]))
    return [[model, gpu, count] for model in row["models"] for count in row["counts"]]


def _distinct(path: Path, key: str, values: Sequence[object]) -> None:
    if not values or len(set(values)) != len(values):
        raise _bad(path, key, list(values), "at least one, and none twice")


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _bad(path: Path, what: str, got: object, expected: str) -> InputError:
    return InputError(what, got=got, expected=expected, where=path, do="correct that file")
