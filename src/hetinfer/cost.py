"""Cost per million tokens: a price times what only the drain leaves open.

A run of g cards at p USD per GPU-hour costs p g T, and T = W + D: the arrival window is known, the
drain is modelled (`drain.py`). Price multiplies; it is never estimated, so that any price list
re-prices every fit. Over one H100, the cost ratio is (p g) / (p_H100 share).
"""

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from hetinfer.drain import check_count, check_rate, interpolate_drain_s, with_drains
from hetinfer.errors import InputError
from hetinfer.hardware import check_price, find_gpu, load_models, load_prices
from hetinfer.intervals import CONFIDENCE, mean_interval
from hetinfer.metrics import cost_usd_per_mtoken, price_of
from hetinfer.regression import Form, Regression, fit_regression, predict_mean
from hetinfer.runs import CONFIGURATION, average_replicates
from hetinfer.validation import Predictor
from hetinfer.workload import study_arrivals_s

Array = npt.NDArray[np.float64]

MODELLED_GPUS = ("h100-pcie", "rtx-4090")  # what the form's one indicator tells apart
DRAIN = Form("drain", "drain_s", "log", ("log2_rate", "log2_weights", "on_4090"))


def cost_cells(runs: pd.DataFrame) -> pd.DataFrame:
    """One row a cell with last_arrival_s, drain_s, tokens and `with_drain_covariates`.

    Replicates are averaged; `tokens` counts input and output.
    """
    cells = with_drains(average_replicates(runs))
    return with_drain_covariates(
        cells.assign(tokens=cells["input_tokens"] + cells["output_tokens"])
    )


def with_drain_covariates(cells: pd.DataFrame) -> pd.DataFrame:
    """The rows with log2_rate, log2_count, log2_weights (of GB read a step), on_4090 (0 or 1).

    InputError for a GPU that the study did not run: the form has no term for it.
    """
    _check_gpus(cells["gpu"])
    weights_gb = {
        name: m.parameters_read_per_step_b * m.weight_bytes_per_parameter
        for name, m in load_models().items()
    }
    return cells.assign(
        log2_rate=np.log2(cells["rate_requests_per_s"]),
        log2_count=np.log2(cells["gpu_count"]),
        log2_weights=np.log2(cells["model"].map(weights_gb)),
        on_4090=(cells["gpu"] == "rtx-4090").astype(float),
    )


def fit_drain(cells: pd.DataFrame) -> Regression:
    """ln of the drain on log2 rate, log2 GB of weights a step, and the GPU; Gaussian, log link.

    The number of cards is left out: it does not help to predict a model that has not run.
    """
    return fit_regression(DRAIN, cells)


def predict_cost(
    fit: Regression,
    cells: pd.DataFrame,
    prices: Mapping[str, float],
    confidence: float = CONFIDENCE,
) -> pd.DataFrame:
    """Mean cost in USD per million tokens with interval: p g (W + D) / (3600 tokens) 10^6.

    Columns estimate, low, high, freedom; the cells' index. Window and tokens are the cells' own.
    """
    drain = predict_mean(fit, cells, confidence)
    ends = {name: cost_of_drain(cells, drain[name], prices) for name in ("estimate", "low", "high")}
    return pd.DataFrame(ends).assign(freedom=drain["freedom"])


def cost_of_drain(
    cells: pd.DataFrame, drain_s: pd.Series, prices: Mapping[str, float]
) -> pd.Series:
    """USD per million tokens of cells whose requests drain in `drain_s` seconds."""
    speed = cells["tokens"] / (cells["last_arrival_s"] + drain_s)
    return pd.Series(
        cost_usd_per_mtoken(speed, cells["gpu_count"], price_of(cells, dict(prices))),
        index=cells.index,
    )


def duration_predictor(form: Form) -> Predictor:
    """The form as a function (runs to fit, runs to predict) -> durations in seconds.

    A relative error of duration is one of cost, whatever the prices.
    """

    def predictor(fitted: pd.DataFrame, cells: pd.DataFrame) -> Array:
        drain = predict_mean(fit_regression(form, fitted), cells)["estimate"]
        return np.asarray(cells["last_arrival_s"] + drain)

    return predictor


def cost_cell(
    cells: pd.DataFrame, model: str, *, gpu: str, gpu_count: int, rate_requests_per_s: float
) -> pd.DataFrame:
    """One row to predict a cost for: a model that has run, on as many cards as some model ran.

    Its tokens are those of the model's runs. InputError for a model or GPU without runs, or a rate
    or count outside those that ran.
    """
    _check_gpus([gpu])
    check_rate(cells, rate_requests_per_s)
    check_count(cells[cells["gpu"] == gpu], gpu_count)
    own = cells[cells["model"] == model]
    if own.empty:
        raise InputError(
            "no runs of this model",
            got=model,
            expected="a model with recorded runs, whose tokens are counted",
            where="the recorded runs",
            do="measure it first",
        )
    row = pd.DataFrame(
        {
            "model": [model],
            "gpu": [gpu],
            "gpu_count": [gpu_count],
            "rate_requests_per_s": [rate_requests_per_s],
            "last_arrival_s": [
                study_arrivals_s(int(own["prompts"].iloc[0]), rate_requests_per_s)[-1]
            ],
            "tokens": [own["tokens"].mean()],
        }
    )
    return with_drain_covariates(row)


def interpolated_cost(
    cells: pd.DataFrame, cell: pd.DataFrame, prices: Mapping[str, float]
) -> float | None:
    """USD per million tokens of a measured configuration from its own runs, None if it has none.

    At a measured rate it is the measured cost. InputError for a rate outside the measured ones.
    """
    row = cell.iloc[0]
    same = np.logical_and.reduce([cells[name] == row[name] for name in CONFIGURATION])
    if not same.any():
        return None
    drain_s = interpolate_drain_s(cells[same], float(row["rate_requests_per_s"]))
    return float(cost_of_drain(cell, pd.Series(drain_s, index=cell.index), prices).iloc[0])


def with_cost_ratio(pairs: pd.DataFrame, prices: Mapping[str, float]) -> pd.DataFrame:
    """Pairs with cost_ratio, of cost per token over one H100's: (p g / p_H100) / share."""
    relative = price_of(pairs, dict(prices)) / prices["h100-pcie"] * pairs["gpu_count"]
    return pairs.assign(cost_ratio=relative / pairs["share"])


def describe_cost_ratios(pairs: pd.DataFrame, prices: Mapping[str, float]) -> pd.DataFrame:
    """Mean cost ratio over models at each GPU count and rate, with its t interval over models.

    Columns: gpu_count, rate_requests_per_s, cost_ratio, low, high (95 %; NaN for one model),
    n_models, price_ratio (of one 4090 over one H100: a ratio at other prices is proportional).
    """
    rows = []
    keys = ["gpu_count", "rate_requests_per_s"]
    for key, group in with_cost_ratio(pairs, prices).groupby(keys):
        values = group["cost_ratio"].to_numpy()
        rows.append((*key, *mean_interval(values), values.size))
    table = pd.DataFrame(rows, columns=[*keys, "cost_ratio", "low", "high", "n_models"])
    return table.assign(price_ratio=prices["rtx-4090"] / prices["h100-pcie"])


def drain_steps(cells: pd.DataFrame) -> float:
    """How many decoding steps a drain lasts: the median over cells of drain over mean TPOT."""
    return float((cells["drain_s"] / cells["tpot_mean_s"]).median())


def frontier_costs(cells: pd.DataFrame, prices: Mapping[str, float]) -> pd.DataFrame:
    """Cells with their cost, and whether any other of the model at that rate beats them.

    Adds cost_usd_per_mtoken and on_frontier, by cost, P99 TTFT and throughput.
    """
    costs = cells.assign(cost_usd_per_mtoken=cost_of_drain(cells, cells["drain_s"], prices))
    best = pd.Series(False, index=costs.index)
    for _, group in costs.groupby(["model", "rate_requests_per_s"]):
        best[group.index] = is_on_frontier(
            group,
            lower=["cost_usd_per_mtoken", "ttft_p99_s"],
            higher=["throughput_tokens_per_s"],
        )
    return costs.assign(on_frontier=best)


def is_on_frontier(costs: pd.DataFrame, *, lower: list[str], higher: list[str]) -> pd.Series:
    """Whether no other row is at least as good in every column and better in one."""
    values = np.column_stack([*(costs[c] for c in lower), *(-costs[c] for c in higher)])
    no_worse = (values[:, None, :] <= values[None, :, :]).all(axis=2)
    better = (values[:, None, :] < values[None, :, :]).any(axis=2)
    return pd.Series(~(no_worse & better).any(axis=0), index=costs.index)


def break_even_prices(
    pairs: pd.DataFrame, cells: pd.DataFrame, targets_s: Iterable[float]
) -> pd.DataFrame:
    """At which 4090 price, as a fraction of the H100's, the cheaper configuration changes.

    break_even = share / g: below it the g 4090s cost less per token. Under a target of P99 TTFT a
    configuration that misses it is no choice, and no price changes that. Columns: model, gpu_count,
    rate_requests_per_s, ttft_target_s, break_even, meets_4090, meets_h100. An infinite target is
    none.
    """
    keys = [*CONFIGURATION, "rate_requests_per_s"]
    own = cells[[*keys, "ttft_p99_s"]]
    base = own[(own["gpu"] == "h100-pcie") & (own["gpu_count"] == 1)]
    table = (
        pairs[[*keys, "share"]]
        .merge(own, on=keys)
        .merge(
            base[["model", "rate_requests_per_s", "ttft_p99_s"]],
            on=["model", "rate_requests_per_s"],
            suffixes=("", "_h100"),
        )
    )
    pieces = [
        table.assign(
            ttft_target_s=target_s,
            meets_4090=table["ttft_p99_s"] <= target_s,
            meets_h100=table["ttft_p99_s_h100"] <= target_s,
        )
        for target_s in targets_s
    ]
    flips = pd.concat(pieces, ignore_index=True)
    return flips.assign(break_even=flips["share"] / flips["gpu_count"]).drop(columns=["gpu"])


def rank_by_scenario(flips: pd.DataFrame, price_ratios: Mapping[str, float]) -> pd.DataFrame:
    """In how many pairs the 4090s are the cheaper choice, by price list, target, count and rate.

    `flips` is `break_even_prices`, `price_ratios` a 4090's price over an H100's. Columns: scenario,
    price_ratio, ttft_target_s, gpu_count, rate_requests_per_s, cheaper (at the price), chosen
    (cheaper and within the target, or alone within it), n_pairs.
    """
    pieces = []
    for name, ratio in price_ratios.items():
        cheaper = ratio < flips["break_even"]
        chosen = flips["meets_4090"] & (cheaper | ~flips["meets_h100"])
        pieces.append(
            flips.assign(scenario=name, price_ratio=ratio, cheaper=cheaper, chosen=chosen)
        )
    keys = ["scenario", "price_ratio", "ttft_target_s", "gpu_count", "rate_requests_per_s"]
    groups = pd.concat(pieces).groupby(keys, sort=False)
    return groups.agg(
        cheaper=("cheaper", "sum"), chosen=("chosen", "sum"), n_pairs=("model", "size")
    ).reset_index()


def price_list(scenario: str, overrides: Iterable[str]) -> dict[str, float]:
    """A scenario's prices with some replaced by `gpu=USD` per GPU-hour, as in commands.

    Raises InputError for a word that is not `gpu=USD`, an unknown GPU, or a price not above 0.
    """
    prices = load_prices(scenario)
    for word in overrides:
        gpu, _, price = word.partition("=")
        try:
            usd_per_h = float(price)
        except ValueError:
            raise InputError(
                "price not understood",
                got=repr(word),
                expected="gpu=USD, such as rtx-4090=0.34",
                where="--price",
                do="write it so",
            ) from None
        prices[find_gpu(gpu).gpu] = check_price(usd_per_h, where=f"--price {word}")
    return prices


def _check_gpus(gpus: Iterable[str]) -> None:
    unknown = sorted(set(gpus) - set(MODELLED_GPUS))
    if unknown:
        raise InputError(
            "GPU without runs",
            got=", ".join(unknown),
            expected=f"one of {', '.join(MODELLED_GPUS)}",
            where="the cost model",
            do="measure it first",
        )
