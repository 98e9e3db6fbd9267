"""Configurations that were never fitted, from a card's constants and a model's figures."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from hetinfer.errors import InputError
from hetinfer.hardware import Gpu, LanguageModel, find_gpu, find_model
from hetinfer.simulation.calibration import FRONT_END, Fit, prior_engine
from hetinfer.simulation.engine import Engine
from hetinfer.simulation.step_time import GpuConstants, constants_of, median_constants


def gpu_constants(fits: Sequence[Fit], gpu: Gpu, gpu_count: int) -> GpuConstants:
    """A card's constants: the median over fits on as many of it, or at least alike (one, several).

    InputError when no fit is alike.
    """
    alike = _alike(fits, gpu, gpu_count)
    return median_constants(
        [constants_of(f.engine.step_time, find_model(f.model), gpu, f.gpu_count) for f in alike]
    )


def predict_engine(
    model: LanguageModel, gpu: Gpu, gpu_count: int, fits: Sequence[Fit] = ()
) -> Engine:
    """The engine of a configuration that has no fit of its own.

    Step time from the card's constants in `fits` (from physics alone where none is alike), front
    end the median of theirs, KV cache from its memory. InputError for a model that does not fit.
    """
    if not _alike(fits, gpu, gpu_count):
        return prior_engine(model, gpu, gpu_count)
    engine = prior_engine(model, gpu, gpu_count, gpu_constants(fits, gpu, gpu_count))
    fronts = [fit.engine.front_end for fit in _alike(fits, gpu, gpu_count)]
    medians = {name: median(getattr(front, name) for front in fronts) for name in FRONT_END}
    return replace(engine, front_end=replace(engine.front_end, **medians))


def leave_one_out(fits: Sequence[Fit], gpu: str, gpu_count: int) -> list[Fit]:
    """Each configuration of one card and count, predicted from the other models' fits alone.

    As fits with an endless cost, since nothing was fitted; for `parity_table`. InputError for fewer
    than two models.
    """
    own = [fit for fit in fits if (fit.gpu, fit.gpu_count) == (gpu, gpu_count)]
    if len(own) < 2:
        raise InputError(
            "nothing to leave out",
            got=f"{len(own)} models on {gpu_count}x {gpu}",
            expected="fits of at least two",
            where="leave_one_out",
            do="fit more models on it",
        )
    predicted = []
    for left_out in own:
        others = [fit for fit in own if fit is not left_out]
        model, card = find_model(left_out.model), find_gpu(gpu)
        engine = predict_engine(model, card, gpu_count, others)
        predicted.append(replace(left_out, engine=engine, cost=float("inf")))
    return predicted


def _alike(fits: Sequence[Fit], gpu: Gpu, gpu_count: int) -> list[Fit]:
    same_gpu = [fit for fit in fits if fit.gpu == gpu.gpu]
    same_count = [fit for fit in same_gpu if fit.gpu_count == gpu_count]
    return same_count or [fit for fit in same_gpu if (fit.gpu_count > 1) == (gpu_count > 1)]
