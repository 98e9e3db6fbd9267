"""Time of one engine step from what it carries, and what physics says of it before any run.

A step that computes T tokens, gives D requests a token each, and reads K tokens of context takes

    t = launch + sqrt(weights^2 + (compute T)^2) + communication T + sequence D + context K

The root of squares is a roofline with a rounded corner: the weights are read while tokens are
computed, so the longer of the two counts most.

Forms tried on the recorded runs, by the cost of their fit to rates 1, 8 and 32 on seven H100
configurations (lower is better; the exponent is that of the corner): linear sum 2499, exponent 1.5
816, 2 803, 2.5 959, 4 1222; exponent 2 with a constant for steps that carry a prefill 734, with one
for steps of more than 512 tokens 769; exponent 4 with the same 887 and 1137, with a cost per
prefilled token 1165. Exponent 2 without further terms is used: nine per cent of a cost do not pay
for a parameter more in every configuration.
"""

from dataclasses import astuple, dataclass
from statistics import median

from hetinfer.errors import InputError
from hetinfer.hardware import Gpu, LanguageModel
from hetinfer.simulation.event_loop import Cost, step_s

GIB = 1.024**3  # cards state their memory in 2^30 bytes and call it GB: 10^9 bytes per stated one
MEMORY_USED_FRAC = 0.9  # vLLM's default --gpu-memory-utilization
RUNTIME_GB = {"enterprise": 2.5, "consumer": 0.7}  # CUDA context, graphs, activations of one GPU
LARGE_MEMORY_GB = 70.0  # where vLLM 0.8.5 takes its larger defaults
COMMUNICATIONS_PER_LAYER = 2  # one sum over all GPUs after attention, one after the MLP
BYTES_PER_ACTIVATION = 2


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


@dataclass(frozen=True)
class GpuConstants:
    """What relates a card's figures to the time of a step, whatever the model.

    `launch_s_per_layer`, doubled where GPUs work together; fractions of the card's memory bandwidth
    for weights and KV cache and of its dense 16-bit rate; `bus_gb_per_s` between GPUs;
    `sequence_s` as in `StepTime`.
    """

    launch_s_per_layer: float
    weights_bandwidth_frac: float
    context_bandwidth_frac: float
    compute_frac: float
    bus_gb_per_s: float
    sequence_s: float


# where a fit starts, and what it is drawn towards: an H100 PCIe is held back by its 350 W, a 4090
# is not; several 4090s have no peer-to-peer and go through the host
PRIOR_CONSTANTS = {
    "enterprise": GpuConstants(75e-6, 0.91, 0.9, 0.48, 20.0, 15e-6),
    "consumer": GpuConstants(100e-6, 0.91, 0.9, 0.88, 5.0, 15e-6),
}


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


def predict_step_time(
    model: LanguageModel, gpu: Gpu, gpu_count: int, constants: GpuConstants | None = None
) -> StepTime:
    """The step time that the figures of a model and a card give, in seconds; nothing is fitted.

    With n GPUs, B and C their bandwidth and compute rate, W bytes of weights read, N parameters,
    L layers of width H, k bytes of KV cache a token: weights W/(nB), compute 2N/(nC) (halved for
    8-bit weights), context k/(nB), each over its fraction; communication, a ring's sums,
    2 L x 2(n-1)/n x 2H bytes over the bus. InputError for a card without a compute rate.
    """
    used = constants or PRIOR_CONSTANTS[gpu.tier]
    if not gpu.dense_bf16_tflops > 0:
        raise _gpu_error("no compute rate", gpu, "none", "fill in dense_bf16_tflops")
    bandwidth = gpu_count * gpu.memory_bandwidth_gb_per_s * 1e9
    weights_bytes = model.parameters_read_per_step_b * 1e9 * model.weight_bytes_per_parameter
    flop = 2e9 * model.parameters_read_per_step_b * model.weight_bytes_per_parameter / 2
    return StepTime(
        launch_s=used.launch_s_per_layer * model.layers * (1 if gpu_count == 1 else 2),
        weights_s=weights_bytes / (used.weights_bandwidth_frac * bandwidth),
        compute_s=flop / (used.compute_frac * gpu_count * gpu.dense_bf16_tflops * 1e12),
        communication_s=_exchanged_bytes(model, gpu_count) / (used.bus_gb_per_s * 1e9),
        sequence_s=used.sequence_s,
        context_s=model.kv_bytes_per_token / (used.context_bandwidth_frac * bandwidth),
    )


def constants_of(
    step_time: StepTime, model: LanguageModel, gpu: Gpu, gpu_count: int
) -> GpuConstants:
    """The constants that a fitted step time implies: the inverse of `predict_step_time`."""
    prior = PRIOR_CONSTANTS[gpu.tier]
    physical = predict_step_time(model, gpu, gpu_count, prior)
    speed = {
        name: getattr(physical, name) / getattr(step_time, name)
        for name in ("launch_s", "weights_s", "context_s", "compute_s")
    }
    bus_gb_per_s = prior.bus_gb_per_s
    if gpu_count > 1:
        bus_gb_per_s *= physical.communication_s / step_time.communication_s
    return GpuConstants(
        prior.launch_s_per_layer / speed["launch_s"],
        prior.weights_bandwidth_frac * speed["weights_s"],
        prior.context_bandwidth_frac * speed["context_s"],
        prior.compute_frac * speed["compute_s"],
        bus_gb_per_s,
        step_time.sequence_s,
    )


def median_constants(constants: list[GpuConstants]) -> GpuConstants:
    """One card's constants from those of several fits: the median of each."""
    if not constants:
        raise InputError(
            "no fits",
            got="0",
            expected="at least one fit on this GPU",
            where="median_constants",
            do="fit a configuration of it first",
        )
    return GpuConstants(*(median(column) for column in zip(*map(astuple, constants), strict=True)))


def kv_cache_tokens(model: LanguageModel, gpu: Gpu, gpu_count: int) -> int:
    """Tokens that the KV cache holds: memory that vLLM may use, less weights and runtime.

    n (0.9 M - R) - W over the KV bytes of a token, M the card's memory, R `RUNTIME_GB`, W the
    weights. InputError for a model that does not fit.
    """
    usable_gb = gpu_count * (MEMORY_USED_FRAC * gpu.memory_gb * GIB - RUNTIME_GB[gpu.tier])
    weights_gb = model.parameters_b * model.weight_bytes_per_parameter
    if weights_gb >= usable_gb:
        raise _gpu_error(
            f"{model.model} does not fit",
            gpu,
            f"{weights_gb:.1f} GB of weights on {gpu_count} of it, {usable_gb:.1f} GB usable",
            "use more or larger GPUs",
        )
    return int((usable_gb - weights_gb) * 1e9 / model.kv_bytes_per_token)


def scheduler_limits(gpu: Gpu) -> tuple[int, int]:
    """Most sequences and most batched tokens of one step: vLLM 0.8.5's defaults for the card."""
    return (1024, 8192) if gpu.memory_gb >= LARGE_MEMORY_GB else (256, 2048)


def _exchanged_bytes(model: LanguageModel, gpu_count: int) -> float:
    once = 2 * (gpu_count - 1) / gpu_count * BYTES_PER_ACTIVATION * model.hidden
    return COMMUNICATIONS_PER_LAYER * model.layers * once


def _gpu_error(what: str, gpu: Gpu, got: object, do: str) -> InputError:
    return InputError(
        what, got=got, expected="a card that can serve it", where=f"gpus.csv, {gpu.gpu}", do=do
    )
