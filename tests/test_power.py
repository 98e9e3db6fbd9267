import os
import time
from pathlib import Path

import pytest

from hetinfer.measurement.power import sampling, visible_gpus
from nvml_stand_in import build_stand_in, run_with

SAMPLE_TWO_CARDS = """
import dataclasses, json, time
from hetinfer.measurement.energy import mean_power_w, run_energy
from hetinfer.measurement.power import sampling
with sampling([0, 1], interval_s=0.02) as log:
    start_s = time.perf_counter()
    time.sleep(0.2)
    end_s = time.perf_counter()
energy = run_energy(log, start_s, end_s, tokens=100, idle_power_w=20.0)
last = dataclasses.asdict(log.samples[-1]) if log.samples else {}
print(json.dumps({"energy": dataclasses.asdict(energy), "reasons": log.reasons, "last": last,
                  "duration_s": end_s - start_s, "mean_power_w": mean_power_w(log)}))
"""


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory):
    return build_stand_in(tmp_path_factory.mktemp("nvml"))


def test_two_cards_give_the_energy_of_both_by_counter_and_by_samples(stand_in):
    found = run_with(stand_in, SAMPLE_TWO_CARDS)
    energy, expected_j = found["energy"], 300.0 * found["duration_s"]
    assert expected_j == pytest.approx(energy["gpu_counter_j"], rel=1e-2)
    assert expected_j == pytest.approx(energy["gpu_integral_j"], rel=1e-6)
    assert energy["gpu_counter_j"] == energy["gpu_energy_j"]
    assert expected_j / 100 == pytest.approx(energy["gpu_j_per_token"], rel=1e-2)
    above_idle = (expected_j - 20 * found["duration_s"]) / 100
    assert above_idle == pytest.approx(energy["gpu_above_idle_j_per_token"], rel=1e-2)
    assert energy["gpu_reason"] == ""
    assert pytest.approx(300.0, rel=1e-2) == found["mean_power_w"]


def test_a_sample_holds_clocks_limit_temperature_and_throttle_reasons(stand_in):
    last = run_with(stand_in, SAMPLE_TWO_CARDS)["last"]
    assert last["device"] == "gpu1"
    assert (last["sm_clock_mhz"], last["memory_clock_mhz"]) == (2520, 10501)
    assert (
        last["temperature_c"],
        last["power_limit_w"],
        last["throttle_reasons"],
    ) == (51, 450.0, 4)


@pytest.mark.parametrize(
    ("defect", "reason"),
    [
        ("no-driver", "no-driver"),
        ("mismatch", "driver-library-mismatch"),
        ("init-permission", "no-permission"),
        ("no-card", "no-gpu"),
        ("lost", "gpu1:gpu-lost"),
        ("drift", "gpu0:counter-integral-disagree"),
        ("power-permission no-counter", "gpu0:no-energy_j;no-power_w"),
    ],
)
def test_what_a_machine_cannot_tell_is_empty_with_a_reason(stand_in, defect, reason):
    energy = run_with(stand_in, SAMPLE_TWO_CARDS, defect)["energy"]
    assert reason == energy["gpu_reason"]
    assert energy["gpu_energy_j"] is None
    assert energy["gpu_j_per_token"] is None


def test_a_card_without_the_counter_has_an_empty_counter_and_an_integral(stand_in):
    found = run_with(stand_in, SAMPLE_TWO_CARDS, "no-counter")
    assert found["energy"]["gpu_counter_j"] is None
    assert found["energy"]["gpu_energy_j"] == found["energy"]["gpu_integral_j"]
    assert found["energy"]["gpu_reason"] == "gpu0:no-energy_j"
    assert found["reasons"]["gpu0.energy_j"] == "not-supported"


def test_a_driver_that_lacks_the_counter_function_is_named_too_old(tmp_path):
    found = run_with(build_stand_in(tmp_path, "-DWITHOUT_COUNTER"), SAMPLE_TWO_CARDS)
    assert found["reasons"]["gpu0.energy_j"] == "driver-too-old"
    assert found["energy"]["gpu_energy_j"] is not None


def test_a_card_that_the_run_names_but_the_host_lacks_is_no_gpu(stand_in):
    script = SAMPLE_TWO_CARDS.replace("[0, 1]", "[0, 2]")
    assert run_with(stand_in, script)["energy"]["gpu_reason"] == "gpu2:no-gpu"


def test_cards_are_found_by_index_and_by_uuid(stand_in):
    script = (
        "import json\nfrom hetinfer.measurement.power import visible_gpus\n"
        "print(json.dumps(visible_gpus(2)))"
    )
    assert run_with(stand_in, script, CUDA_VISIBLE_DEVICES="1,0") == [1, 0]
    assert run_with(stand_in, script, CUDA_VISIBLE_DEVICES="GPU-1") == [1]
    assert run_with(stand_in, script, CUDA_VISIBLE_DEVICES="") == [0, 1]


def test_eight_cards_are_sampled_five_times_in_two_seconds_at_least(stand_in):
    script = """
import json, time
from hetinfer.measurement.power import sampling
with sampling([0, 1] * 4) as log:
    time.sleep(2.1)
print(json.dumps({"samples": len(log.samples)}))
"""
    found = run_with(stand_in, script)
    assert found["samples"] >= 8 * 5


def test_without_a_driver_the_log_says_so_and_the_block_runs():
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this host has an NVIDIA driver")
    with sampling([0]) as log:
        pass
    assert log.reasons["gpu"] == "no-driver"
    assert visible_gpus(2) == (0, 1)


def write_package(folder, energy_uj, range_uj=1_000_000):
    zone = folder / "intel-rapl:0"
    zone.mkdir(exist_ok=True)
    (zone / "energy_uj").write_text(str(energy_uj))
    (zone / "max_energy_range_uj").write_text(str(range_uj))
    return zone


def test_the_cpu_counter_goes_on_where_it_wraps(tmp_path):
    write_package(tmp_path, 900_000)
    with sampling([], powercap=tmp_path, interval_s=60) as log:
        write_package(tmp_path, 100_000)
    assert log.cpus == ("cpu0",)
    first, last = (sample.energy_j for sample in log.samples)
    assert pytest.approx(0.2) == last - first


def test_an_unreadable_cpu_counter_is_no_permission(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    (write_package(tmp_path, 1) / "energy_uj").chmod(0)
    with sampling([], powercap=tmp_path) as log:
        pass
    assert log.reasons["cpu0"] == "no-permission"


def test_samples_are_taken_while_the_block_lasts_and_stop_after_it(tmp_path):
    write_package(tmp_path, 1)
    with sampling([], powercap=tmp_path, interval_s=0.01) as log:
        time.sleep(0.1)
    taken = len(log.samples)
    assert taken >= 4
    time.sleep(0.05)
    assert taken == len(log.samples)
