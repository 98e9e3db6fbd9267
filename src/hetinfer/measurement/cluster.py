"""A campaign over a Ray cluster: each series to a node that has its GPUs, results come home."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hetinfer.measurement.campaign import Campaign, Series
from hetinfer.measurement.records import Record


def ray_source(
    campaign: Campaign, address: str, interpreter: Path | None
) -> Callable[[Sequence[Series]], Iterator[Record]]:
    """placeholder"""
    raise NotImplementedError
