"""Step time from what a host was measured to reach, in place of its cards' data sheets.

A profile is the JSON that `hetinfer roofline` prints: rates of matrix products and of memory, the
time of launching a step's kernels, and of sums over several ranks.

Tried on the host of `cpu-prefix-cache`, profiled in ten seconds with one thread, as the engine
computes with (`OMP_NUM_THREADS=1 hetinfer roofline`): a prompt's token takes 0.86 ms, where the fit
to 27 runs says 0.85, but a step of one token 10 ms for 18. What an engine does between its kernels
is in no profile.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hetinfer.errors import InputError
from hetinfer.hardware import LanguageModel
from hetinfer.records import Record, as_number, bad_field, load_records, number, whole
from hetinfer.simulation.step_time import (
    BYTES_PER_ACTIVATION,
    COMMUNICATIONS_PER_LAYER,
    PRIOR_CONSTANTS,
    StepTime,
)

PROFILED_LAYERS = 28  # of the model whose step's kernels a profile launches


@dataclass(frozen=True)
class Profile:
    """What one host reached: rates per second of one device, times in seconds.

    `matmul_flops_per_s` by number format; `copy_bytes_per_s` counts what is read and written;
    `step_overhead_s` launches the kernels of a model of 28 layers; `all_reduce_s` sums a message
    over `ranks` devices, by its bytes.
    """

    matmul_flops_per_s: Mapping[str, float]
    copy_bytes_per_s: float
    step_overhead_s: float
    ranks: int
    all_reduce_s: Mapping[int, float]


def load_profile(path: Path) -> Profile:
    """A host's profile; InputError for a file that is none, or a rate that is not positive."""
    record = next(iter(load_records(path)))
    return Profile(
        _positives(record, "matmul_flops_per_s"),
        _positive(record, "copy_bytes_per_s", number(record, "copy_bytes_per_s")),
        _positive(record, "step_overhead_s", number(record, "step_overhead_s")),
        whole(record, "ranks"),
        {int(size): taken for size, taken in _positives(record, "all_reduce_s").items()},
    )


def profiled_step_time(
    model: LanguageModel, profile: Profile, gpu_count: int, *, dtype: str = "bfloat16"
) -> StepTime:
    """The step time that a model's figures and a host's profile give, in seconds.

    As `predict_step_time` with measured rates for B and C: weights W/(nB), compute 2N/(nC),
    context k/(nB). Launch is the profile's, in proportion to layers. With several devices each of
    the 2 L sums of a step takes a time that does not depend on its size, which joins the launch,
    and one that does, which makes the communication: the line through the smallest and the largest
    message. A request's own share is the prior's. InputError for a format or count without a
    measurement.
    """
    if dtype not in profile.matmul_flops_per_s:
        raise _profile_error("no rate", dtype, ", ".join(profile.matmul_flops_per_s))
    fixed_s, per_byte_s = _all_reduce_line(profile, gpu_count)
    sums = COMMUNICATIONS_PER_LAYER * model.layers
    bandwidth = gpu_count * profile.copy_bytes_per_s
    weights_bytes = model.parameters_read_per_step_b * 1e9 * model.weight_bytes_per_parameter
    flop = 2e9 * model.parameters_read_per_step_b * model.weight_bytes_per_parameter / 2
    return StepTime(
        launch_s=profile.step_overhead_s * model.layers / PROFILED_LAYERS + sums * fixed_s,
        weights_s=weights_bytes / bandwidth,
        compute_s=flop / (gpu_count * profile.matmul_flops_per_s[dtype]),
        communication_s=sums * per_byte_s * BYTES_PER_ACTIVATION * model.hidden,
        sequence_s=PRIOR_CONSTANTS["enterprise"].sequence_s,
        context_s=model.kv_bytes_per_token / bandwidth,
    )


def _all_reduce_line(profile: Profile, gpu_count: int) -> tuple[float, float]:
    """Seconds of a sum over all devices, whatever its size, and more a byte; 0 for one device."""
    if gpu_count == 1:
        return 0.0, 0.0
    sizes = sorted(profile.all_reduce_s)
    if profile.ranks != gpu_count or len(sizes) < 2:
        got = f"sums of {len(sizes)} sizes over {profile.ranks} ranks"
        raise _profile_error("no communication", got, f"two sizes over {gpu_count} ranks")
    small, large = sizes[0], sizes[-1]
    taken_s = profile.all_reduce_s
    per_byte_s = max(0.0, (taken_s[large] - taken_s[small]) / (large - small))
    return max(0.0, taken_s[small] - per_byte_s * small), per_byte_s


def _positives(record: Record, name: str) -> dict[str, float]:
    values = record.fields.get(name)
    if not isinstance(values, dict):
        raise bad_field(record, name, "none", "numbers by name")
    return {
        key: _positive(record, name, as_number(record, name, value))
        for key, value in values.items()
    }


def _positive(record: Record, name: str, value: float) -> float:
    if not 0 < value < float("inf"):
        raise bad_field(record, name, f"{value:g}", "a finite number above 0")
    return value


def _profile_error(what: str, got: str, expected: str) -> InputError:
    return InputError(
        what,
        got=got,
        expected=expected,
        where="the host's profile",
        do="run hetinfer roofline there",
    )
