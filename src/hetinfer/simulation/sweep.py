"""Many independent simulations, on all cores of one machine or on a cluster: the same numbers."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import joblib

from hetinfer.errors import InputError

BACKENDS = ("sequential", "loky", "ray")
Cell = TypeVar("Cell")
Result = TypeVar("Result")


def sweep(
    simulate: Callable[[Cell], Result],
    cells: Sequence[Cell],
    *,
    jobs: int = -1,
    backend: str = "loky",
) -> list[Result]:
    """One result a cell, in the order of the cells, computed by `jobs` processes (-1: every core).

    A cell carries its own seed, so who computes it, and when, changes nothing. `backend` is `loky`
    (processes of this machine), `sequential`, or `ray`: the cluster that is connected to or that
    `RAY_ADDRESS` names, or else this machine, with the package ray. InputError for another backend,
    `ray` without its package, or no cell.
    """
    if backend not in BACKENDS or not cells:
        raise InputError(
            "sweep not possible",
            got=f"{len(cells)} cells on backend {backend!r}",
            expected=f"at least one cell on one of {', '.join(BACKENDS)}",
            where="sweep",
            do="correct it",
        )
    if backend == "ray":
        _register_ray()
    with joblib.parallel_config(backend=backend, n_jobs=jobs):
        return list(joblib.Parallel()(joblib.delayed(simulate)(cell) for cell in cells))


def _register_ray() -> None:
    try:
        from ray.util.joblib import register_ray
    except ImportError:
        raise InputError(
            "no Ray",
            got="backend 'ray' without its package",
            expected="Ray in this environment",
            where="sweep",
            do="run make cluster",
        ) from None
    register_ray()
