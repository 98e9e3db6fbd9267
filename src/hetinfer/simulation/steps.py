"""An engine's steps, read off the times at which a measured run's tokens arrived.

All tokens of one step reach the client together, so the arrivals of all requests fall into groups.
The time from one group to the next is one step's, where a request has a token in both: the engine
had work throughout. What the step carried follows from the requests' lengths.
"""

from collections.abc import Sequence
from dataclasses import astuple

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from hetinfer.errors import InputError
from hetinfer.simulation.measured import MeasuredRun, text_names
from hetinfer.simulation.step_time import StepTime
from hetinfer.workload import Floats

APART_S = 0.025  # a pause that ends a group: streaming one step's tokens took less than half of it
SOFT_AT = 0.2  # of log duration; beyond, a step (the host stood still) pulls with constant force
STEPS = ["duration_s", "tokens", "emitting", "context_tokens"]
FEWEST_STEPS = 100
NEGLIGIBLE_S = 1e-9  # where a coefficient that the data do not need may end


def measured_steps(runs: Sequence[MeasuredRun]) -> pd.DataFrame:
    """The steps of runs given server by server, in order; columns `STEPS`, one row a step.

    As `step_time.step_time_s` takes them: tokens computed, requests that got a token, context of
    those that decoded. Prompts that their server computed before count without their cached blocks.
    """
    rows: list[tuple[float, int, int, int]] = []
    known: set[str] = set()
    for run in runs:
        names = text_names(run)
        cached = [name in known and run.settings.prefix_caching for name in names]
        rows += _steps(run, cached)
        known.update(names)
    return pd.DataFrame(rows, columns=STEPS)


def fit_step_time(steps: pd.DataFrame, start: StepTime) -> StepTime:
    """The coefficients that explain the steps' durations, those not 0 in `start`, from there.

    Minimises a smooth absolute loss of log(measured / computed), each step counting by the time it
    took. InputError for fewer than a hundred steps.
    """
    if len(steps) < FEWEST_STEPS:
        raise InputError(
            "too few steps", got=len(steps), expected=f"at least {FEWEST_STEPS}",
            where="fit_step_time", do="measure longer",
        )  # fmt: skip
    measured, tokens, emitting, context = (steps[name].to_numpy(float) for name in STEPS)
    began = np.array(astuple(start))
    free = began > 0
    weights = np.sqrt(measured / measured.mean())

    def off(logs: Floats) -> Floats:
        values = began.copy()
        values[free] = np.exp(logs)
        launch, weights_s, compute, communication, sequence, per_context = values
        computed = launch + np.hypot(weights_s, compute * tokens) + communication * tokens
        computed += sequence * emitting + per_context * context
        result: Floats = weights * np.log(measured / computed)
        return result

    bounds = (np.log(NEGLIGIBLE_S), 0.0)
    found = least_squares(off, np.log(began[free]), bounds=bounds, loss="soft_l1", f_scale=SOFT_AT)
    values = began.copy()
    values[free] = np.exp(found.x)
    return StepTime(*map(float, values))


def _steps(run: MeasuredRun, cached: Sequence[bool]) -> list[tuple[float, int, int, int]]:
    prompts = run.requests["input_tokens"].to_numpy(int)
    size = run.settings.block_tokens
    held = np.where(cached, (prompts - 1) // size * size, 0)
    rows = []
    before: list[tuple[float, int, int]] = []
    for group in _groups(run.token_s):
        requests = {request for _, request, _ in group}
        if requests & {request for _, request, _ in before}:
            started = [request for _, request, place in group if place == 0]
            decoded = [(request, place) for _, request, place in group if place > 0]
            tokens = sum(int(prompts[r] - held[r]) for r in started) + len(decoded)
            context = sum(int(prompts[request]) + place for request, place in decoded)
            rows.append((group[0][0] - before[0][0], tokens, len(group), context))
        before = group
    return rows


def _groups(token_s: Sequence[Floats]) -> list[list[tuple[float, int, int]]]:
    """Tokens (time, request, place in its answer) by step: a request has one a step."""
    arrived = sorted(
        (float(time_s), request, place)
        for request, times_s in enumerate(token_s)
        for place, time_s in enumerate(times_s)
    )
    groups: list[list[tuple[float, int, int]]] = []
    inside: set[int] = set()
    for token in arrived:
        if not groups or token[1] in inside or token[0] - groups[-1][-1][0] > APART_S:
            groups.append([])
            inside = set()
        groups[-1].append(token)
        inside.add(token[1])
    return groups
