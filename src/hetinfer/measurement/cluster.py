"""A campaign over a Ray cluster: each series to a node that has its GPUs, results come home.

A node offers its cards as custom resources named as in `data/reference/gpus.csv`, such as
`ray start --address=HEAD:6379 --resources='{"rtx-4090": 4}'`; one that serves on its CPU offers
`{"cpu": 1}`. Only records travel, one a cell, as it ends; nothing is shared but the code.
"""

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hetinfer.errors import InputError
from hetinfer.hardware import CPU
from hetinfer.measurement import records
from hetinfer.measurement.campaign import Campaign, Series
from hetinfer.measurement.records import Record
from hetinfer.measurement.series import default_setup, measure_series

MAX_LOSSES = 5  # of nodes, for one series, before its cells are given up
LOOK_S = 10.0  # between looks at which nodes are left
KNOCK_S = 10.0

Offers = Sequence[Mapping[str, float]]  # each node's resources, by name


def ray_source(
    campaign: Campaign, address: str, interpreter: Path | None = None
) -> Callable[[Sequence[Series]], Iterator[Record]]:
    """What runs series on the cluster at `address` and gives their records as they come.

    Each node uses its own clone's `.venv-vllm`, or `interpreter`. Raises InputError where Ray is
    not installed, no cluster answers, or no node offers the GPUs of a series.
    """
    ray = _connected(address)
    python = str(interpreter) if interpreter else ""

    def source(series: Sequence[Series]) -> Iterator[Record]:
        check_offers(_offers(ray), series)
        yield from _spread(ray, campaign, series, python)

    return source


def is_offered(offers: Offers, series: Series) -> bool:
    """Whether some node alone has the cards that a series needs."""
    cell = series.cells[0]
    return any(node.get(cell.gpu, 0) >= cell.gpu_count for node in offers)


def check_offers(offers: Offers, series: Sequence[Series]) -> None:
    """InputError naming the first series that no node has the cards for."""
    for one in series:
        if not is_offered(offers, one):
            cell = one.cells[0]
            known = sorted({name for node in offers for name in node if ":" not in name})
            raise InputError(
                "no node has the GPUs",
                got=f"{', '.join(known) or 'nothing'} offered",
                expected=f"a node with {cell.gpu_count} x {cell.gpu}, which {one.name} needs",
                where="the Ray cluster",
                do=f"start a node with --resources='{{\"{cell.gpu}\": {cell.gpu_count}}}'",
            )


def _connected(address: str) -> Any:
    try:
        import ray
    except ModuleNotFoundError:
        raise InputError(
            "Ray is not installed",
            got="no package ray",
            expected="the extra that has it",
            where="this environment",
            do="run make cluster",
        ) from None
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, ignore_reinit_error=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(
            "no Ray cluster",
            got=str(error).splitlines()[0],
            expected="the host:port of a head that answers",
            where=address,
            do="start one with ray start --head",
        ) from None
    return ray


def _knock(address: str) -> None:
    """OSError if nothing listens at `host:port`, for which Ray itself would wait for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), KNOCK_S).close()


def _run_on_node(campaign: Campaign, series: Series, python: str) -> Iterator[Record]:
    """What a node runs: the series, with the vLLM that the node has."""
    yield from measure_series(campaign, series, default_setup(Path(python) if python else None))


def _offers(ray: Any) -> Offers:
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _spread(
    ray: Any, campaign: Campaign, series: Sequence[Series], python: str
) -> Iterator[Record]:
    """Start every series where its cards are free, and hand on records as they come home.

    What a lost node had not sent is started again elsewhere; the records it sent stand.
    """
    task = ray.remote(num_cpus=0, max_retries=0)(_run_on_node)

    def start(one: Series) -> Any:
        cell = one.cells[0]
        cards = 0 if cell.gpu == CPU else cell.gpu_count  # so that Ray gives each its own cards
        needs = {cell.gpu: cell.gpu_count}
        return task.options(num_gpus=cards, resources=needs).remote(campaign, one, python)

    open_series = {start(one): one for one in series}
    losses = dict.fromkeys((one.name for one in series), 0)
    while open_series:
        ready, waiting = ray.wait(list(open_series), num_returns=1, timeout=LOOK_S)
        for stream in ready:
            one = open_series.pop(stream)
            try:
                record = ray.get(next(stream))
            except StopIteration:
                continue
            except ray.exceptions.RayTaskError as error:
                yield from _given_up(one, "node-failed", str(error.cause))
            except ray.exceptions.RayError as error:
                losses[one.name] += 1
                if losses[one.name] > MAX_LOSSES:
                    yield from _given_up(one, "node-lost", str(error))
                else:
                    open_series[start(one)] = one
            else:
                yield record
                left = tuple(cell for cell in one.cells if cell.name != record.cell)
                if left:
                    open_series[stream] = Series(one.name, left)
        for stream in waiting if not ready else ():
            if not is_offered(_offers(ray), open_series[stream]):
                yield from _given_up(open_series.pop(stream), "node-lost", "none has its GPUs now")


def _given_up(series: Series, reason: str, detail: str) -> Iterator[Record]:
    line = detail.splitlines()[0] if detail else reason
    for cell in series.cells:
        yield records.failure_record(cell.name, reason, line, detail)
