import dataclasses
import json

import pytest

from hetinfer.errors import InputError
from hetinfer.hardware import find_gpu, find_model
from hetinfer.simulation.profile import Profile, load_profile, profiled_step_time
from hetinfer.simulation.step_time import PRIOR_CONSTANTS, GpuConstants, predict_step_time

MODEL = find_model("DeepSeek-R1-Distill-Qwen-7B")  # 28 layers of width 3584, 57344 KV bytes a token
ONE = Profile({"bfloat16": 5e14, "float16": 4e14}, 2e12, 2e-3, 1, {})
TWO = dataclasses.replace(ONE, ranks=2, all_reduce_s={1000: 3e-5, 2_001_000: 1.03e-3})


def test_a_step_on_one_device_by_hand():
    step = profiled_step_time(MODEL, ONE, 1)
    assert step.launch_s == pytest.approx(2e-3)
    assert step.weights_s == pytest.approx(7.07e9 * 2 / 2e12)
    assert step.compute_s == pytest.approx(2 * 7.07e9 / 5e14)
    assert step.context_s == pytest.approx(57344 / 2e12)
    assert step.communication_s == 0
    assert profiled_step_time(MODEL, ONE, 1, dtype="float16").compute_s > step.compute_s


def test_two_devices_share_the_work_and_sum_twice_a_layer():
    one, two = profiled_step_time(MODEL, ONE, 1), profiled_step_time(MODEL, TWO, 2)
    assert two.weights_s == pytest.approx(one.weights_s / 2)
    assert two.compute_s == pytest.approx(one.compute_s / 2)
    # 5e-10 s a byte and 2.95e-5 s a sum
    assert two.launch_s == pytest.approx(2e-3 + 56 * 2.95e-5)
    assert two.communication_s == pytest.approx(56 * 5e-10 * 2 * 3584)


def test_measured_rates_equal_to_the_data_sheet_s_give_the_same_step():
    card = find_gpu("h100-pcie")
    sheet = Profile(
        {"bfloat16": card.dense_bf16_tflops * 1e12}, card.memory_bandwidth_gb_per_s * 1e9,
        28 * 75e-6, 1, {},
    )  # fmt: skip
    ideal = GpuConstants(75e-6, 1.0, 1.0, 1.0, 20.0, PRIOR_CONSTANTS["enterprise"].sequence_s)
    found, expected = profiled_step_time(MODEL, sheet, 1), predict_step_time(MODEL, card, 1, ideal)
    assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(expected))


def test_what_was_not_measured_is_an_error():
    with pytest.raises(InputError, match="no rate"):
        profiled_step_time(MODEL, ONE, 1, dtype="float8")
    with pytest.raises(InputError, match="no communication"):
        profiled_step_time(MODEL, TWO, 4)


def test_a_profile_is_read_as_hetinfer_roofline_prints_it(tmp_path):
    printed = {"device": "cuda", "name": "x", "torch": "2", "backend": "nccl"}
    printed |= dataclasses.asdict(TWO)
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(printed, indent=1))
    assert load_profile(path) == TWO
    path.write_text(json.dumps(printed | {"copy_bytes_per_s": 0}))
    with pytest.raises(InputError, match="copy_bytes_per_s"):
        load_profile(path)
