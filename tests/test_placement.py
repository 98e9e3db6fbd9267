from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetinfer.errors import InputError
from hetinfer.footprint import carbon, placement
from hetinfer.footprint.placement import Job, Pool, plan_placement
from hetinfer.runs import load_recorded

# 1 kW, clean only in hour 1; two copies of half a kW, dirty, and an eighth of the price
CLEAN = Pool("clean", "h100-pcie", 1, "FR", 1.0, 1000.0, 0.0, 2.0, np.array([100.0, 10.0]))
DIRTY = Pool("dirty", "rtx-4090", 1, "PL", 2.0, 500.0, 0.0, 0.25, np.array([600.0, 600.0]))
SPEEDS = np.array([[1000.0, 500.0]])  # tokens per s: 3.6 and 1.8 Mtoken an hour
JOB = Job("batch", "a model", 3.6, 0, 2, 4.0)


def test_cleanest_placement_waits_for_the_clean_hour():
    plan = plan_placement([CLEAN, DIRTY], [JOB], SPEEDS)
    assert plan.hours[["pool", "hour"]].to_numpy().tolist() == [["clean", 1]]
    assert (plan.carbon_g, plan.cost_usd) == pytest.approx((10, 2))


def test_cheapest_placement_takes_the_cheap_pool():
    plan = plan_placement([CLEAN, DIRTY], [JOB], SPEEDS, "cost")
    assert (plan.carbon_g, plan.cost_usd) == pytest.approx((600, 0.5))


def test_deadline_before_the_clean_hour_forces_the_next_cleanest():
    plan = plan_placement([CLEAN, DIRTY], [replace(JOB, deadline_h=1)], SPEEDS)
    assert plan.carbon_g == pytest.approx(100)


def test_release_is_kept():
    plan = plan_placement([CLEAN, DIRTY], [replace(JOB, release_h=1)], SPEEDS)
    assert plan.hours["hour"].min() == 1


def test_work_beyond_the_clean_hour_spills_over():
    plan = plan_placement([CLEAN, DIRTY], [replace(JOB, mtoken=9.0)], SPEEDS)
    # 3.6 for 10 g in hour 1, 3.6 for 100 g in hour 0, 1.8 for 300 g on one dirty copy
    assert plan.carbon_g == pytest.approx(410)


def test_embodied_carbon_counts():
    burdened = replace(CLEAN, embodied_g_per_h=700.0)
    plan = plan_placement([burdened, DIRTY], [JOB], SPEEDS)
    assert plan.hours["pool"].unique().tolist() == ["dirty"]


def test_equally_clean_placements_take_the_cheapest():
    dear = replace(CLEAN, name="dear", price_usd_per_h=9.0)
    plan = plan_placement([dear, CLEAN], [JOB], np.array([[1000.0, 1000.0]]))
    assert plan.cost_usd == pytest.approx(2)


def test_pool_that_misses_the_latency_target_serves_nothing():
    plan = plan_placement([CLEAN, DIRTY], [JOB], np.array([[0.0, 500.0]]))
    assert plan.hours["pool"].unique().tolist() == ["dirty"]


@given(
    st.lists(st.floats(0.1, 4.0), min_size=1, max_size=4),
    st.lists(st.floats(0, 700), min_size=6, max_size=6),
)
@settings(max_examples=25, deadline=None)
def test_every_job_is_done_and_no_pool_overfilled(amounts, intensities):
    profiles = np.array(intensities).reshape(2, 3)
    pools = [
        replace(pool, intensity_g_per_kwh=profile)
        for pool, profile in zip((CLEAN, DIRTY), profiles, strict=True)
    ]
    jobs = [Job(f"job {i}", "m", amount, 0, 3, 4.0) for i, amount in enumerate(amounts)]
    plan = plan_placement(pools, jobs, np.repeat(SPEEDS, len(jobs), axis=0))
    done = plan.hours.groupby("job")["mtoken"].sum()
    assert done.tolist() == pytest.approx(amounts, rel=1e-4)
    used = plan.hours.groupby(["pool", "hour"])["copy_hours"].sum()
    room = used.index.get_level_values("pool").map({"clean": 1.0, "dirty": 2.0})
    assert (used.to_numpy() <= room.to_numpy() + 1e-6).all()


@given(st.floats(0.5, 10.0))
@settings(max_examples=15, deadline=None)
def test_cleanest_is_never_dirtier_and_cheapest_never_dearer(mtoken):
    job = replace(JOB, mtoken=mtoken)
    clean, cheap = (plan_placement([CLEAN, DIRTY], [job], SPEEDS, o) for o in ("carbon", "cost"))
    assert clean.carbon_g <= cheap.carbon_g * (1 + 1e-6)
    assert cheap.cost_usd <= clean.cost_usd * (1 + 1e-6)


def test_more_work_than_fits_names_job_and_what_fits():
    with pytest.raises(InputError, match=r"36 Mtoken, of which 14\.4 fit before hour 2.*in batch"):
        plan_placement([CLEAN, DIRTY], [replace(JOB, mtoken=36.0)], SPEEDS)


def test_job_that_no_pool_serves_is_named():
    job = replace(JOB, ttft_target_s=0.001)
    with pytest.raises(InputError, match=r"no pool serves the job .*: got 0\.001 s.*in batch"):
        plan_placement([CLEAN, DIRTY], [job], np.zeros((1, 2)))


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (replace(JOB, deadline_h=3), "window of hours"),
        (replace(JOB, release_h=2), "window of hours"),
        (replace(JOB, mtoken=0.0), "amount of work"),
    ],
)
def test_impossible_job_is_an_error(job, message):
    with pytest.raises(InputError, match=message):
        plan_placement([CLEAN, DIRTY], [job], SPEEDS)


def test_profiles_of_unlike_length_are_an_error():
    short = replace(DIRTY, intensity_g_per_kwh=np.array([600.0]))
    with pytest.raises(InputError, match="hourly profiles"):
        plan_placement([CLEAN, short], [JOB], SPEEDS)


def test_negative_price_is_an_error():
    with pytest.raises(InputError, match="negative number"):
        plan_placement([CLEAN, replace(DIRTY, price_usd_per_h=-1.0)], [JOB], SPEEDS)


def test_speeds_of_another_shape_are_an_error():
    with pytest.raises(InputError, match="speeds"):
        plan_placement([CLEAN], [JOB], SPEEDS)


def test_speeds_come_from_runs_that_keep_the_target():
    model = "meta-llama/Meta-Llama-3-8B-Instruct"
    jobs = [Job(str(target), model, 1.0, 0, 2, 4.0, target) for target in (2.0, 0.1)]
    speeds = placement.serving_speeds([CLEAN, DIRTY], jobs, load_recorded())
    assert speeds[0].tolist() == pytest.approx([1562, 1384], abs=1)
    assert speeds[1].tolist() == [speeds[0, 0], 0]  # the 4090's P99 TTFT is 132 ms


def test_pools_of_offers_carry_price_power_and_region():
    quantities = {name: np.array([1.0]) for name in carbon.QUANTITIES}
    machine = carbon.Machine(gpu="rtx-4090", site="home", cards_per_host=None, **quantities)
    columns = ["gpu", "gpu_count", "holding", "region", "copies"]
    offers = pd.DataFrame([["rtx-4090", 2, "idle", "FR", 3]], columns=columns)
    (pool,) = placement.pools_of(offers, {"rtx-4090": machine}, {"rtx-4090": 0.25}, hours=2)
    assert (pool.name, pool.copies, pool.price_usd_per_h) == ("2x 4090, idle, FR", 3, 0.5)
    assert (pool.power_w, pool.embodied_g_per_h) == (pytest.approx(3), 0)
    assert pool.intensity_g_per_kwh.tolist() == [41.4, 41.4]
    with pytest.raises(InputError, match="card without machine or price: got rtx-4090"):
        placement.pools_of(offers, {"rtx-4090": machine}, {}, hours=2)


def test_hour_of_work_charges_no_waiting():
    quantities = {name: np.array([1.0]) for name in carbon.QUANTITIES}
    powers = {"board_w": np.array([300.0]), "idle_w": np.array([99.0])}
    machine = carbon.Machine(gpu="a", site="home", cards_per_host=None, **(quantities | powers))
    power_w, embodied_g = placement.hour_of_work(machine, 2, "owned")
    # two boards and a host of 1 W; 3 kg over a year, of which one hour
    assert power_w == pytest.approx(601)
    assert embodied_g == pytest.approx(3000 / (365.25 * 24))
