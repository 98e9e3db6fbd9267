"""The traffic of a scenario: its classes, their shares of the requests, lengths and targets."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from hetinfer.errors import InputError
from hetinfer.explorer.scenario import Scenario
from hetinfer.fleet.scenarios import CLASSES, LATENCY_CRITICAL

NO_TARGET_S = 60.0  # a plan needs one: work without a target may wait a minute


@dataclass(frozen=True)
class Traffic:
    """One class of a scenario's requests: its rate, mean lengths in tokens, targets in seconds."""

    name: str
    requests_per_s: float
    prompt_tokens: int
    output_tokens: int
    ttft_target_s: float
    tpot_target_s: float


def traffic_shares(mix: Mapping[str, float]) -> dict[str, float]:
    """Each class's share of the requests: its part over the sum of all parts, those of 0 left out.

    InputError for a class that `fleet.scenarios` does not know, a part below 0, or nothing at all.
    """
    unknown = [name for name in mix if name not in CLASSES]
    if unknown:
        raise _mix_error(unknown[0], f"classes from {', '.join(CLASSES)}")
    if not all(0 <= part < math.inf for part in mix.values()) or not any(mix.values()):
        raise _mix_error(dict(mix), "parts of 0 or more, one of them above 0")
    total = sum(mix.values())
    return {name: part / total for name, part in mix.items() if part}


def traffic_of(cells: pd.DataFrame, scenario: Scenario) -> list[Traffic]:
    """What each class of a scenario's mix asks for; the shares are of its rate.

    `cells` is `load_cells`. Lengths and targets are those of `fleet.scenarios`, but chat and batch
    have the mean lengths of the model's recorded runs, and the scenario's target is chat's, in
    proportion to which the other classes of people who wait (agents, development) have theirs.
    Without it these have none but a minute for the first token. InputError as `traffic_shares`.
    """
    shares = traffic_shares(scenario.mix)
    chosen = cells[cells["model"] == scenario.model]
    recorded = chosen[["input_tokens", "output_tokens"]].sum() / chosen["prompts"].sum()
    found = []
    for name, share in shares.items():
        spec = CLASSES[name]
        ttft_s, tpot_s = _targets_s(name, scenario.ttft_target_s)
        prompt = spec.prompt_tokens or recorded["input_tokens"]
        output = spec.output_tokens or recorded["output_tokens"]
        rate = share * scenario.rate_requests_per_s
        found.append(Traffic(name, rate, round(prompt), round(output), ttft_s, tpot_s))
    return found


def _targets_s(name: str, chat_target_s: float) -> tuple[float, float]:
    """A class's targets of TTFT and TPOT when chat's of TTFT is the chosen one."""
    spec = CLASSES[name]
    if name not in LATENCY_CRITICAL:
        return spec.ttft_target_s, spec.tpot_target_s
    if math.isinf(chat_target_s):
        return NO_TARGET_S, math.inf
    return chat_target_s * spec.ttft_target_s / CLASSES["chat"].ttft_target_s, spec.tpot_target_s


def _mix_error(got: object, expected: str) -> InputError:
    return InputError(
        "mix of traffic", got=got, expected=expected, where="the scenario", do="choose the parts"
    )
