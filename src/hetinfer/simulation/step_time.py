"""Time of one engine step from what it carries, and what physics says of it before any run.

A step that computes T tokens, gives D requests a token each, and reads K tokens of context takes

    t = launch + ((weights)^4 + (compute T)^4)^(1/4) + communication T + sequence D + context K

The fourth-power mean is a roofline with a rounded corner: the weights are read while tokens are
computed, so the longer of the two counts.
"""

from dataclasses import astuple, dataclass

from hetinfer.errors import InputError
from hetinfer.simulation.event_loop import Cost, step_s


@dataclass(frozen=True)
class StepTime:
    """Coefficients of one step's time, each in seconds.

    `launch_s` a step, whatever it carries; `weights_s` to read all weights once; `compute_s` a
    token; `communication_s` a token, between GPUs; `sequence_s` a request that gets a token;
    `context_s` a token of context that a decoding request reads.
    """

    launch_s: float
    weights_s: float
    compute_s: float
    communication_s: float = 0.0
    sequence_s: float = 0.0
    context_s: float = 0.0


def cost_of(step_time: StepTime) -> Cost:
    """The coefficients as the event loop takes them; InputError for a negative or endless one."""
    for name, value in step_time.__dict__.items():
        if not 0 <= value < float("inf"):
            raise InputError(
                "step time not usable",
                got=f"{name} = {value}",
                expected="finite seconds, 0 or more",
                where="StepTime",
                do="correct it",
            )
    return Cost(*astuple(step_time))


def step_time_s(
    step_time: StepTime, tokens: float, *, emitting: float = 0.0, context_tokens: float = 0.0
) -> float:
    """Time of one step in seconds; the formula is in the module's head."""
    return step_s(cost_of(step_time), float(tokens), float(emitting), float(context_tokens))
