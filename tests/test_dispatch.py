import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetinfer.errors import InputError
from hetinfer.fleet import dispatch
from hetinfer.fleet.availability import Ownership, draw_outages, outages_of
from hetinfer.fleet.demand import ServiceClass, Workload, spread_lengths, steady_workload
from hetinfer.fleet.dispatch import ABANDONED, BACK, GONE, NOTICE, REJECTED, SERVED
from hetinfer.fleet.routing import POLICIES
from hetinfer.fleet.simulation import Member, Router, attainment, simulate_fleet
from hetinfer.simulation.engine import Engine, FrontEnd, simulate_engine
from hetinfer.simulation.step_time import StepTime
from hetinfer.workload import Lengths, Requests, fresh_requests, poisson_arrivals_s

STEP = StepTime(launch_s=0.003, weights_s=0.015, compute_s=8e-5, sequence_s=2e-5, context_s=1.4e-7)
ENGINE = Engine(20_000, 64, 512, STEP, FrontEnd(receive_s=0.004, token_s=1e-4))
SMALL = dataclasses.replace(ENGINE, kv_tokens=2_400)  # preempts
SLOW = dataclasses.replace(ENGINE, step_time=dataclasses.replace(STEP, weights_s=0.06))
CHAT = ServiceClass("chat", spread_lengths(100, 50, longest=400), 0.5, 0.1)
UNIT = Engine(640, 1, 64, StepTime(1.0, 0.0, 0.0), prefix_caching=False)
ANY = ServiceClass("any", Lengths(np.array([8]), np.array([1])), 10.0)


def one_class(requests, service=CHAT):
    return Workload((service,), requests, np.zeros(requests.arrival_s.size, np.int64))


def some_requests(seed, n=300, rate=20.0, texts=None):
    rng = np.random.default_rng(seed)
    text = rng.integers(0, texts, n) if texts else np.arange(n)
    prompt = rng.integers(1, 300, n)[text]
    return Requests(poisson_arrivals_s(n, rate, rng), prompt, rng.integers(1, 300, n), text)


def fleet_of(*engines, tiers=None):
    tiers = tiers or range(len(engines))
    return [
        Member(f"{number}", engine, tier, 1000.0 / (1 + number))
        for number, (engine, tier) in enumerate(zip(engines, tiers, strict=True))
    ]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("texts", [None, 40])
@pytest.mark.parametrize(
    "engine", [ENGINE, SMALL, dataclasses.replace(ENGINE, prefix_caching=False)]
)
def test_a_fleet_of_one_engine_is_that_engine_to_the_last_bit(policy, texts, engine):
    requests = some_requests(3, texts=texts)
    alone = simulate_engine(requests, engine)
    run = simulate_fleet(one_class(requests), fleet_of(engine), Router(policy, (0,)))
    assert np.array_equal(alone.ttft_s, run.ttft_s)
    assert np.array_equal(alone.finished_s, run.finished_s)
    assert alone.busy_s == run.busy_s[0]


def test_stalls_of_the_front_end_are_those_of_the_engine_alone():
    engine = dataclasses.replace(ENGINE, front_end=FrontEnd(0.004, stall_s=0.1, stall_frac=0.1))
    requests = some_requests(5)
    alone = simulate_engine(requests, engine, np.random.default_rng(1))
    members, router = fleet_of(engine), Router("least-work")
    run = simulate_fleet(one_class(requests), members, router, np.random.default_rng(1))
    assert np.array_equal(alone.ttft_s, run.ttft_s)
    with pytest.raises(InputError, match="no rng"):
        simulate_fleet(one_class(requests), members, router)


def test_two_equal_engines_take_turns():
    """Unit services one after the other: of requests half a second apart each takes every other."""
    requests = fresh_requests(np.arange(10) * 0.5 + 0.01, [8] * 10, [1] * 10)
    members = [Member(name, UNIT) for name in "ab"]
    run = simulate_fleet(one_class(requests, ANY), members, Router("least-work"))
    assert [0, 1] * 5 == run.engine.tolist()
    assert np.allclose(1.0, run.ttft_s)


def test_two_equal_engines_split_by_class_wait_as_m_d_1_and_longer_than_by_least_work():
    """At load 0.6 each: wait 0.6 / (2 (1 - 0.6)) = 0.75 services."""
    rng = np.random.default_rng(0)
    other = dataclasses.replace(ANY, name="other")
    workload = steady_workload([ANY, other], [0.6, 0.6], 60_000.0, rng)
    members = [Member("a", UNIT, 0), Member("b", UNIT, 1)]
    split = simulate_fleet(workload, members, Router("static", (0, 1)))
    joined = simulate_fleet(workload, members, Router("least-work"))
    assert split.served == pytest.approx([36_000] * 2, rel=0.02)
    assert split.ttft_s.mean() - 1 == pytest.approx(0.75, rel=0.03)
    assert joined.ttft_s.mean() - 1 < 0.5 * 0.75


def test_a_class_of_a_static_split_stays_on_its_tier():
    workload = steady_workload([CHAT, ANY], [5.0, 5.0], 60.0, np.random.default_rng(0))
    run = simulate_fleet(workload, fleet_of(ENGINE, SLOW), Router("static", (1, 0)))
    assert np.array_equal(1 - workload.service, run.engine)


def test_one_tier_leaves_the_others_idle():
    run = simulate_fleet(
        one_class(some_requests(1)), fleet_of(ENGINE, SLOW, tiers=(0, 1)), Router("one-tier")
    )
    assert [300, 0] == run.served.tolist()


def test_cost_first_fills_the_cheap_engine_up_to_its_limit_and_no_further():
    members = [
        Member("dear", ENGINE, 0, 1000.0, usd_per_mtoken=2.0, most_outstanding=(50.0,)),
        Member("cheap", SLOW, 1, 500.0, usd_per_mtoken=1.0, most_outstanding=(3.0,)),
    ]
    requests = fresh_requests(np.arange(10) * 1e-4, [50] * 10, [100] * 10)
    run = simulate_fleet(one_class(requests), members, Router("cost-first"))
    assert [1] * 3 + [0] * 7 == run.engine.tolist()
    swapped = [dataclasses.replace(m, g_per_mtoken=-m.usd_per_mtoken) for m in members]
    clean = simulate_fleet(one_class(requests), swapped, Router("carbon-aware"))
    assert [0] * 10 == clean.engine.tolist()


def test_a_router_sees_only_what_has_happened():
    """The step that the first request begins ends at 1 s: a request before that finds it there."""
    members = [Member("a", UNIT, 0, 10.0), Member("b", UNIT, 0, 9.9)]
    requests = fresh_requests([0.0, 0.999, 2.5], [8] * 3, [1] * 3)
    run = simulate_fleet(one_class(requests, ANY), members, Router("least-work"))
    assert [0, 1, 0] == run.engine.tolist()


def test_what_an_owner_takes_back_is_served_elsewhere():
    requests = fresh_requests([0.0, 0.1], [8] * 2, [1] * 2)
    members = [Member("a", UNIT, 0), Member("b", UNIT, 0)]
    outages = outages_of([(0.5, 0, NOTICE), (0.5, 0, GONE), (100.0, 0, BACK)])
    run = simulate_fleet(one_class(requests, ANY), members, Router("least-work"), outages=outages)
    assert [1, 1] == run.engine.tolist()
    assert [2, 1] == run.tries.tolist()
    assert np.allclose([2.1, 1.0], run.ttft_s)  # after the other, which began at 0.1 s
    assert 0.5 == run.busy_s[0]


def test_after_its_last_try_a_request_is_abandoned_and_without_engine_rejected():
    requests = fresh_requests([0.0, 0.7, 5.0], [8] * 3, [1] * 3)
    outages = outages_of([(0.5, 0, GONE), (0.5, 0, NOTICE), (2.0, 0, BACK)])
    once = Router("least-work", most_tries=1)
    run = simulate_fleet(one_class(requests, ANY), [Member("a", UNIT)], once, outages=outages)
    assert [ABANDONED, REJECTED, SERVED] == run.end.tolist()
    assert [6.0] == run.finished_s[2:].tolist()


def test_notice_keeps_new_requests_away():
    requests = fresh_requests([1.0, 2.0], [8] * 2, [1] * 2)
    members = [Member("a", UNIT, 0, 2.0), Member("b", UNIT, 0, 1.0)]
    outages = outages_of([(1.5, 0, NOTICE), (9.0, 0, GONE), (10.0, 0, BACK)])
    run = simulate_fleet(one_class(requests, ANY), members, Router("least-work"), outages=outages)
    assert [0, 1] == run.engine.tolist()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    policy=st.sampled_from(list(POLICIES)),
    away_s=st.sampled_from([0.5, 5.0]),
    tries=st.integers(1, 3),
)
def test_every_request_ends_once_whatever_owners_do(seed, policy, away_s, tries):
    rng = np.random.default_rng(seed)
    workload = steady_workload([CHAT, ANY], [8.0, 8.0], 20.0, rng, burstiness=0.5)
    members = fleet_of(ENGINE, SMALL, SLOW)
    outages = draw_outages([0, 1, 2], Ownership(0.6, away_s, 0.2), 20.0, rng)
    router = Router(policy, (0, 1), tries)
    run = simulate_fleet(workload, members, router, outages=outages)
    assert set(run.end) <= {SERVED, REJECTED, ABANDONED}
    assert run.served.sum() == (run.end == SERVED).sum()
    served = run.end == SERVED
    assert np.isfinite(run.ttft_s[served]).all() and np.isnan(run.ttft_s[~served]).all()
    assert (run.ttft_s[served] > 0).all()
    assert (run.tries <= tries).all()
    tokens = (workload.requests.prompt_tokens + workload.requests.output_tokens)[served]
    assert run.tokens.sum() == tokens.sum()


def test_attainment_counts_what_was_not_served_as_missed():
    requests = fresh_requests([0.0, 0.7, 5.0], [8] * 3, [1] * 3)
    outages = outages_of([(0.5, 0, GONE), (2.0, 0, BACK)])
    once = Router("least-work", most_tries=1)
    run = simulate_fleet(one_class(requests, ANY), [Member("a", UNIT)], once, outages=outages)
    row = attainment(run).iloc[0]
    assert (3, 1 / 3, False) == (row["requests"], row["attainment_frac"], row["holds"])


def test_what_cannot_be_simulated_is_named():
    workload = one_class(some_requests(1))
    with pytest.raises(InputError, match="empty fleet"):
        simulate_fleet(workload, [], Router("least-work"))
    with pytest.raises(InputError, match="unknown policy: got 'best', expected one of one-tier"):
        simulate_fleet(workload, fleet_of(ENGINE), Router("best"))
    with pytest.raises(InputError, match="home tiers"):
        simulate_fleet(workload, fleet_of(ENGINE), Router("static"))
    with pytest.raises(InputError, match="longer than the KV cache"):
        tiny = dataclasses.replace(ENGINE, kv_tokens=320)
        simulate_fleet(workload, fleet_of(ENGINE, tiny), Router("least-work"))


def test_the_loop_on_disk_is_keyed_by_the_code_it_holds():
    closure = dispatch.run_fleet.py_func.__closure__
    assert [dispatch.code_digest()] == [cell.cell_contents for cell in closure]
