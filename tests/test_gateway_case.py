"""The demo's plan and its simulation, for engines made by hand."""

import numpy as np
import pandas as pd
import pytest

from hetinfer.fleet.availability import outages_of
from hetinfer.fleet.dispatch import GONE, SERVED
from hetinfer.fleet.gateway import POLICY
from hetinfer.measurement.gateway_case import (
    BATCH,
    CHAT,
    MORE_THAN_FITS,
    burst_load,
    chat_load,
    mixed_loads,
    plan_case,
    pool_of,
    simulate_sent,
)
from hetinfer.simulation.engine import Engine, FrontEnd
from hetinfer.simulation.step_time import StepTime


@pytest.fixture(scope="module")
def case():
    front = FrontEnd(receive_s=0.005)
    fast = Engine(50_000, 128, 2048, StepTime(0.005, 0.004, 8e-4), front, block_tokens=128)
    slow = Engine(50_000, 128, 2048, StepTime(0.010, 0.020, 3e-3), front, block_tokens=128)
    return plan_case((fast, slow))


def sent_of(case, loads):
    """Requests at even distances, at the loads' rates."""
    frames = [
        pd.DataFrame(
            {
                "class": load.name,
                "start_s": 100.0 + np.arange(load.prompts) / load.rate_requests_per_s,
            }
        )
        for load in loads
    ]
    return pd.concat(frames).sort_values("start_s", kind="stable", ignore_index=True)


def test_only_the_fast_server_does_chat_and_batch_needs_both(case):
    assert (1, 1) == case.plan.counts
    assert case.capacities.requests_per_s[1, 0] == 0
    first = {name: way[0].backend.gpu for name, way in case.gateway.lanes.items()}
    assert {CHAT: "h100-pcie", BATCH: "rtx-4090"} == first
    last = {name: way[-1].backend.gpu for name, way in case.gateway.lanes.items()}
    assert {CHAT: "rtx-4090", BATCH: "h100-pcie"} == last


def test_loads_are_half_the_plan_and_a_burst_is_more_than_fits(case):
    chat, batch = mixed_loads(case)
    planned = case.plan.demand.requests_per_s[:, 0]
    rates = [chat.rate_requests_per_s, batch.rate_requests_per_s]
    np.testing.assert_allclose(planned / 2, rates)
    assert (False, True) == (chat.by_tag, batch.by_tag)
    assert chat.prompts // 2 == chat_load(case).prompts
    limit = case.gateway.lanes[BATCH][0].most_in_flight
    assert limit + MORE_THAN_FITS == burst_load(case).prompts


def test_simulated_classes_land_where_the_plan_says(case):
    run = simulate_sent(case, sent_of(case, mixed_loads(case)), POLICY)
    assert {0} == set(run.engine[run.workload.service == 0])
    assert {1} == set(run.engine[run.workload.service == 1])


def test_a_server_that_goes_leaves_its_requests_to_the_other(case):
    sent = sent_of(case, mixed_loads(case))
    run = simulate_sent(case, sent, POLICY, outages_of([(5.0, 0, GONE)]))
    assert (run.end == SERVED).all()
    chat, late = run.workload.service == 0, sent["start_s"] > 105.0
    assert {1} == set(run.engine[chat & late])
    assert 0 in run.engine[chat & ~late]


def test_both_servers_make_one_pool_with_both_limits(case):
    pool = pool_of(case.gateway)
    (backend,) = pool.backends
    assert 2 == backend.servers
    for name, way in case.gateway.lanes.items():
        limits = [lane.most_in_flight or 0 for lane in way]
        assert [sum(limits), None] == [lane.most_in_flight for lane in pool.lanes[name]]
