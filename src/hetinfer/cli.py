"""The command line: each command is one call into the package."""

import sys
from typing import Annotated

import pandas as pd
import typer

from hetinfer.cost import price_list
from hetinfer.errors import InputError
from hetinfer.estimates import cost_estimates, share_estimates
from hetinfer.hardware import find_gpu, find_model
from hetinfer.runs import load_recorded
from hetinfer.values import estimate_text

app = typer.Typer(
    name="hetinfer",
    help="Reproduce, extend and question a study of RTX 4090 clusters against the H100.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _root() -> None:
    """Every number carries its evidence: printed, recorded, measured, simulated or reference."""


def main() -> None:
    """Run one command; a user's mistake is one line on stderr and exit code 2."""
    try:
        app()
    except InputError as error:
        typer.echo(f"hetinfer: {error}", err=True)
        sys.exit(2)


Model = Annotated[str, typer.Option("--model", help="A model with recorded runs.")]
Rate = Annotated[float, typer.Option("--rate", help="Offered rate in requests per second.")]
Gpus = Annotated[int, typer.Option("--gpus", help="Number of cards.")]


@app.command()
def share(model: Model, rate: Rate, gpus: Gpus) -> None:
    """Throughput of 4090s as a fraction of one H100's, each estimate with its interval."""
    full = find_model(model).model
    table = share_estimates(load_recorded(), full, gpu_count=gpus, rate_requests_per_s=rate)
    _show_estimates(table, decimals=3, unit="of one H100")


@app.command()
def cost(
    model: Model,
    rate: Rate,
    gpus: Gpus,
    gpu: Annotated[str, typer.Option("--gpu", help="The card: rtx-4090 or h100-pcie.")],
    scenario: Annotated[str, typer.Option(help="A price list of prices.csv.")] = "study-2025",
    price: Annotated[list[str] | None, typer.Option(help="gpu=USD per hour, repeatable.")] = None,
) -> None:
    """Cost per million tokens of a configuration, each estimate with its interval."""
    table = cost_estimates(
        load_recorded(),
        find_model(model).model,
        price_list(scenario, price or []),
        gpu=find_gpu(gpu).gpu,
        gpu_count=gpus,
        rate_requests_per_s=rate,
    )
    _show_estimates(table, decimals=4, unit="USD per million tokens")


def _show_estimates(table: pd.DataFrame, *, decimals: int, unit: str) -> None:
    for row in table.to_dict("records"):
        numbers = [row[name] for name in ("estimate", "low", "high", "confidence")]
        text = estimate_text(*numbers, decimals=decimals)
        typer.echo(f"{row['kind']:30s} {text} {unit}; evidence: {row['evidence']}")
