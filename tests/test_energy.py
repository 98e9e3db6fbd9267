import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetinfer.measurement.energy import (
    counter_between_j,
    device_energy,
    integral_between_j,
    longest_gap_s,
    run_energy,
)
from hetinfer.measurement.power import PowerLog, Sample


def ramp(device="gpu0", times_s=(0, 1, 2, 3, 4)):
    """Power 10 W per second of time, and its exact energy, 5 t^2."""
    return [Sample(float(t), device, power_w=10.0 * t, energy_j=5.0 * t * t) for t in times_s]


def test_the_counter_is_read_between_samples():
    assert pytest.approx(5 * 16 - (5 * 1 + 5 * 4) / 2) == counter_between_j(ramp(), 1.5, 4.0)


def test_a_linear_power_integrates_exactly():
    assert pytest.approx(5 * 9 - 5 * 2.25) == integral_between_j(ramp(), 1.5, 3.0)


@given(st.floats(0, 4), st.floats(0, 4), st.floats(0, 4))
def test_energies_of_adjoining_windows_add_up(one, two, three):
    start, middle, end = sorted((one, two, three))
    for energy in (counter_between_j, integral_between_j):
        parts = energy(ramp(), start, middle) + energy(ramp(), middle, end)
        assert pytest.approx(energy(ramp(), start, end), abs=1e-9) == parts


def test_the_longest_gap_counts_both_ends():
    assert longest_gap_s([1.0, 2.0, 2.5], 0.0, 6.0) == 3.5
    assert longest_gap_s([4.0, 5.0], 0.0, 6.0) == 4.0
    assert longest_gap_s([], 0.0, 6.0) == 6.0


def test_a_gap_of_more_than_three_seconds_refuses_the_energy():
    log = PowerLog(("gpu0",), (), ramp(times_s=(0, 1, 4.5, 5)))
    assert device_energy(log, "gpu0", 0.0, 5.0).reason == "gap"
    assert device_energy(PowerLog(("gpu0",), (), ramp()), "gpu0", 0.0, 4.0).reason != "gap"


def test_a_gpu_that_was_never_seen_refuses_the_energy_of_the_run():
    log = PowerLog(("gpu0", "gpu1"), (), ramp())
    energy = run_energy(log, 0.0, 4.0, tokens=10, idle_power_w=None)
    assert energy.gpu_energy_j is None
    assert energy.gpu_reason == "gpu1:not-seen"


def test_energy_above_idle_needs_the_idle_baseline():
    log = PowerLog(("gpu0",), (), ramp())
    assert run_energy(log, 0, 4, tokens=8, idle_power_w=None).gpu_above_idle_j_per_token is None
    assert (
        run_energy(log, 0, 4, tokens=8, idle_power_w=2.0).gpu_above_idle_j_per_token
        == (80 - 2 * 4) / 8
    )


def test_no_tokens_give_no_energy_per_token():
    assert (
        run_energy(PowerLog(("gpu0",), (), ramp()), 0, 4, tokens=0, idle_power_w=0).gpu_j_per_token
        is None
    )


def test_cpu_packages_add_up_by_their_counters_alone():
    samples = [
        Sample(t, cpu, energy_j=7.0 * t) for t in (0.0, 1.0, 2.0) for cpu in ("cpu0", "cpu1")
    ]
    energy = run_energy(PowerLog((), ("cpu0", "cpu1"), samples), 0, 2, tokens=14, idle_power_w=None)
    assert (energy.cpu_energy_j, energy.cpu_j_per_token, energy.cpu_reason) == (28.0, 2.0, "")
