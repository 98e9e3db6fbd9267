import dataclasses

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetinfer.errors import InputError
from hetinfer.fleet.bound import fluid_bound, least_seconds
from hetinfer.fleet.checking import (
    CheckSize,
    best_checked,
    check_plan,
    check_workload_of,
    checked_hours,
    merit,
    simulated_check,
    tighten,
)
from hetinfer.fleet.demand import ServiceClass, daily_rates, spread_lengths, steady_workload
from hetinfer.fleet.offers import (
    Capacities,
    Offer,
    capacities_of,
    draw_curves,
    home_tiers,
    members_of,
    offer_of,
)
from hetinfer.fleet.planning import Aim, Demand, plan_fleet, plan_table
from hetinfer.fleet.simulation import Router, simulate_fleet
from hetinfer.hardware import load_prices
from hetinfer.simulation.capacity import capacity_requests_per_s
from hetinfer.simulation.engine import Engine, simulate_engine
from hetinfer.simulation.fitted import Calibration
from hetinfer.simulation.step_time import StepTime
from hetinfer.workload import Lengths, fresh_requests

LENGTHS = Lengths(np.array([64, 128, 256]), np.array([16, 64, 32]))
CHAT = ServiceClass("chat", LENGTHS, 0.5, 0.1)
BATCH = ServiceClass("batch", LENGTHS, 60.0)
FAST = Engine(60_000, 256, 2048, StepTime(0.003, 0.008, 4e-5, sequence_s=2e-5))
SLOW = Engine(60_000, 256, 2048, StepTime(0.003, 0.016, 12e-5, sequence_s=2e-5))
H100 = Offer("h100-pcie", 1, FAST, 2.0, 600.0, 200.0, 30.0, 242.0, most=50)
CONSUMER = Offer("rtx-4090", 1, SLOW, 0.25, 500.0, 60.0, 20.0, 242.0, most=50)
OFFERS = [H100, CONSUMER]
NO_FITS = Calibration(0, {}, ())


def capacities(rates):
    rates = np.array(rates, float)
    return Capacities(rates, rates * 1.2, np.full(rates.shape, 50.0))


def flat(*rates, classes=(CHAT, BATCH), hours=2):
    return Demand(classes[: len(rates)], np.tile(np.array(rates, float)[:, np.newaxis], hours))


def test_the_cheapest_fleet_of_a_case_done_by_hand():
    """Chat fits only the H100 (10/s), batch both (20/s and 8/s): one of each beats two H100s."""
    plan = plan_fleet(flat(10, 8), OFFERS, capacities([[10, 20], [0, 8]]))
    assert (1, 1) == plan.counts
    assert plan.usd_per_h == 2.25
    assert "1 of 1x H100, 1 of 1x 4090" == plan.fleet
    assert not plan.checked
    table = plan_table(plan).set_index("configuration")
    assert [1.0, 0.0] == table["chat_frac"].tolist()
    assert [0.0, 1.0] == table["batch_frac"].round(9).tolist()


def test_carbon_of_a_case_done_by_hand():
    """Half a day's work of one H100: 30 g + 0.2 kW x 242 + half of 0.4 kW x 242."""
    plan = plan_fleet(flat(5), [H100], capacities([[10]]), Aim("carbon"))
    assert plan.g_per_h == pytest.approx(30 + 0.2 * 242 + 0.5 * 0.4 * 242)


def test_the_aim_decides_between_cheap_and_clean():
    rates = capacities([[10], [1]])
    assert (0, 5) == plan_fleet(flat(5), OFFERS, rates).counts
    assert (1, 0) == plan_fleet(flat(5), OFFERS, rates, Aim("carbon")).counts
    assert (0, 5) == plan_fleet(flat(5), OFFERS, rates, Aim("weighted", 0.5)).counts
    assert (1, 0) == plan_fleet(flat(5), OFFERS, rates, Aim("weighted", 50.0)).counts


def test_reserve_and_absent_cards_need_more_copies():
    rates = capacities([[10], [0]])
    assert (1, 0) == plan_fleet(flat(10), OFFERS, rates).counts
    assert (2, 0) == plan_fleet(flat(10), OFFERS, rates, Aim(reserve_frac=(0.1,))).counts
    lent = [dataclasses.replace(H100, available_frac=0.9), CONSUMER]
    assert (2, 0) == plan_fleet(flat(10), lent, rates).counts


def test_hours_share_copies_and_the_peak_decides():
    demand = Demand((CHAT, BATCH), np.array([[10.0, 0.0], [0.0, 20.0]]))
    assert (1, 0) == plan_fleet(demand, [H100, CONSUMER], capacities([[10, 20], [0, 1]])).counts


@settings(max_examples=30, deadline=None)
@given(
    rates=st.lists(st.floats(0.5, 20), min_size=4, max_size=4),
    demand=st.lists(st.floats(0.1, 60), min_size=2, max_size=2),
)
def test_mixing_is_never_dearer_and_a_plan_has_room_for_all(rates, demand):
    own = capacities(np.reshape(rates, (2, 2)))
    offers = [dataclasses.replace(offer, most=500) for offer in OFFERS]
    mixed = plan_fleet(flat(*demand), offers, own)
    for alone in ([True, False], [False, True]):
        single = plan_fleet(flat(*demand), offers, own.only(alone))
        assert mixed.usd_per_h <= single.usd_per_h + 1e-6
    served = mixed.spread_requests_per_s
    assert np.allclose(served.sum(axis=0), mixed.demand.requests_per_s)
    shares = (served / own.requests_per_s[:, :, np.newaxis]).sum(axis=1)
    assert (shares <= np.array(mixed.counts)[:, np.newaxis] + 1e-6).all()


def test_a_day_of_three_classes_on_eight_configurations_is_planned():
    rng = np.random.default_rng(0)
    classes = [dataclasses.replace(CHAT, name=f"class {n}") for n in range(3)]
    demand = Demand(tuple(classes), np.array([daily_rates(peak) for peak in (50, 20, 80)]))
    offers = [dataclasses.replace(CONSUMER, usd_per_h=price) for price in rng.uniform(0.2, 3, 8)]
    own = capacities(rng.uniform(1, 20, (8, 3)))
    plan = plan_fleet(demand, offers, own)
    assert plan.spread_requests_per_s.shape == (8, 3, 24)
    assert np.allclose(plan.spread_requests_per_s.sum(axis=0), demand.requests_per_s)


def test_what_nothing_meets_is_named_with_the_limit_that_binds():
    with pytest.raises(InputError, match="class chat is served by nothing"):
        plan_fleet(flat(1), OFFERS, capacities([[0], [0]]))
    with pytest.raises(InputError, match=r"600.0 requests/s of chat at its peak, of which 550.0"):
        plan_fleet(flat(600), OFFERS, capacities([[10], [1]]))
    with pytest.raises(InputError, match=r"more demand than all caps allow: got 750.0"):
        plan_fleet(flat(250, 500), OFFERS, capacities([[10, 10], [1, 1]]))
    with pytest.raises(InputError, match="offers: got none"):
        plan_fleet(flat(1), [], capacities(np.zeros((0, 1))))


@pytest.mark.parametrize(
    ("demand", "aim", "said"),
    [
        (flat(-1), Aim(), "demand"),
        (flat(0), Aim(), "demand"),
        (flat(1), Aim("speed"), "objective: got 'speed', expected one of cost"),
        (flat(1), Aim(reserve_frac=(0.1, 0.1)), "reserve"),
        (flat(1), Aim("weighted", -1.0), "reserve"),
    ],
)
def test_a_demand_or_aim_that_is_none_is_named(demand, aim, said):
    with pytest.raises(InputError, match=said):
        plan_fleet(demand, OFFERS, capacities([[1], [1]]), aim)


def simulated(demand, requests=1500):
    curves = draw_curves(OFFERS, demand.classes, requests, 0)
    return capacities_of(OFFERS, demand.classes, curves)


def test_capacities_are_those_of_the_curves_and_none_where_a_request_does_not_fit():
    long = ServiceClass("long", Lengths(np.array([70_000]), np.array([10])), 60.0)
    curves = draw_curves(OFFERS, (CHAT, long), 600, 0)
    own = capacities_of(OFFERS, (CHAT, long), curves)
    curve = curves["1x H100", "chat"]
    expected = capacity_requests_per_s(curve, ttft_p99_s=0.5, tpot_p99_s=0.1)
    assert expected == own.requests_per_s[0, 0]
    assert [0.0, 0.0] == own.requests_per_s[:, 1].tolist()
    assert own.requests_per_s[0, 0] > own.requests_per_s[1, 0] > 0
    assert (own.in_flight[:, 0] >= 1).all()


def test_checked_hours_are_the_peak_and_two_others():
    demand = Demand((CHAT,), daily_rates(10.0)[np.newaxis])
    hours = checked_hours(demand)
    assert 3 == len(hours)
    totals = demand.requests_per_s[0]
    assert totals[hours[0]] == totals.max() and totals[hours[1]] == totals.min()
    assert 1 == len(checked_hours(flat(3, hours=24)))
    night = Demand((CHAT, BATCH), np.array([[9.0, 0.0, 5.0, 1.0], [0.0, 4.0, 2.0, 1.0]]))
    assert (0, 1) == checked_hours(night)[:2]  # more batch than at the peak


def test_windows_of_a_check_have_their_hours_rates_and_lie_apart():
    demand = Demand((CHAT,), np.array([[2.0, 10.0, 5.0]]))
    workload, number = check_workload_of(demand, CheckSize(50.0, 4, 0))
    assert np.bincount(number).reshape(3, 4).sum(axis=1) == pytest.approx(
        [2000, 400, 1000], rel=0.2
    )
    assert np.diff(workload.requests.arrival_s)[np.diff(number) > 0].min() > 3000


def test_a_plan_is_checked_only_if_every_class_keeps_its_target_in_simulation():
    demand = flat(40, 10)
    own = simulated(demand)
    size = CheckSize(40.0, 3, 1)
    plan, table = check_plan(plan_fleet(demand, OFFERS, own), own, "slo-aware", size)
    assert plan.checked == bool(table["holds"].all())
    starved = dataclasses.replace(plan, counts=(0, 1))
    missed, table = check_plan(starved, own, "slo-aware", size)
    assert not missed.checked
    assert table["attainment_frac"].min() < 0.9


def test_tightening_ends_at_a_fleet_that_holds_and_mixing_is_never_dearer():
    demand = flat(60, 20)
    own = simulated(demand)
    check = simulated_check(own, "slo-aware", [CheckSize(20.0, 1, 1), CheckSize(40.0, 3, 2)])
    found = best_checked(demand, OFFERS, own, check)
    assert {"enterprise", "consumer", "any"} == set(found)
    for plan, table in found.values():
        assert plan.checked and table["holds"].all()
        assert found["any"][0].usd_per_h <= plan.usd_per_h
        bound = fluid_bound(demand, OFFERS)
        assert bound.usd_per_h <= plan.usd_per_h
    assert merit(found["any"][0], Aim()) == found["any"][0].usd_per_h
    assert found["enterprise"][0].tiers == {0} and found["consumer"][0].tiers == {1}


def test_a_target_that_no_fleet_keeps_ends_in_the_cap():
    demand, own = flat(10), capacities([[8], [4]])
    few = [dataclasses.replace(offer, most=1) for offer in OFFERS]
    missed = pd.DataFrame({"class": ["chat"], "holds": [False]})
    with pytest.raises(InputError, match="more demand than all caps"):
        tighten(demand, few, own, lambda plan: missed)
    with pytest.raises(InputError, match=r"no plan holds: got .*chat missed with a reserve of"):
        tighten(demand, OFFERS, own, lambda plan: missed)


def test_the_bound_is_below_what_an_engine_takes_however_full_its_batches():
    requests = fresh_requests(np.zeros(3000), [128] * 3000, [64] * 3000)
    lengths = Lengths(np.array([128]), np.array([64]))
    for engine in (FAST, SLOW, dataclasses.replace(FAST, kv_tokens=4_000)):
        busy_s = simulate_engine(requests, engine).busy_s
        assert 0.6 * busy_s < 3000 * least_seconds(engine, lengths).max() < busy_s


def test_no_policy_serves_a_demand_with_less_engine_time_than_the_bound():
    rng = np.random.default_rng(0)
    workload = steady_workload([CHAT, BATCH], [40.0, 40.0], 60.0, rng)
    own = simulated(flat(40, 40))
    members = members_of([H100], [2], [CHAT, BATCH], own)
    run = simulate_fleet(workload, members, Router("slo-aware"))
    lengths = Lengths(workload.requests.prompt_tokens, workload.requests.output_tokens)
    assert run.busy_s.sum() > workload.service.size * least_seconds(FAST, lengths).max()


def test_the_bound_of_a_case_done_by_hand():
    """Steps of one second for one request each: half a request per second is half an engine."""
    unit = Engine(64, 1, 64, StepTime(1.0, 0.0, 0.0))
    one = ServiceClass("one", Lengths(np.array([8]), np.array([1])), 10.0)
    offer = dataclasses.replace(H100, engine=unit)
    demand = Demand((one,), np.array([[0.5, 0.25]]))
    bound = fluid_bound(demand, [offer])
    assert [0.5] == bound.copies.tolist()
    assert 1.0 == bound.usd_per_h
    with pytest.raises(InputError, match="more demand than all caps"):
        fluid_bound(demand, [dataclasses.replace(offer, most=0)])


def test_an_offer_has_its_price_and_the_footprint_of_whole_machines():
    offer = offer_of(NO_FITS, "microsoft/phi-4", ("rtx-4090", 2), load_prices(), "EU27", most=3)
    assert (0.5, 3, "2x 4090", 1) == (offer.usd_per_h, offer.most, offer.name, offer.tier)
    assert 2 * 300 < offer.busy_w < 2 * 450 + 250
    assert 0 < offer.idle_w < offer.busy_w
    assert offer.engine.front_end.stall_frac == 0
    with pytest.raises(InputError, match="no price"):
        offer_of(NO_FITS, "microsoft/phi-4", ("h100-sxm", 1), {"rtx-4090": 1.0}, "EU27")
    with pytest.raises(InputError, match="price not positive"):
        offer_of(NO_FITS, "microsoft/phi-4", ("rtx-4090", 2), {"rtx-4090": -1.0}, "EU27")
    with pytest.raises(InputError, match="does not fit"):
        offer_of(NO_FITS, "microsoft/phi-4", ("rtx-4090", 1), load_prices(), "EU27")


def test_homes_are_the_cheapest_tier_that_keeps_a_class():
    assert (0, 1) == home_tiers(OFFERS, capacities([[10, 10], [0, 5]]))


def test_members_are_ranked_by_price_and_carbon_of_a_token():
    own = capacities([[10, 10], [5, 5]])
    first, second, third = members_of(OFFERS, [1, 2], [CHAT, BATCH], own)
    assert (0, 1, 1) == (first.tier, second.tier, third.tier)
    assert first.usd_per_mtoken == pytest.approx(4 * second.usd_per_mtoken)
    assert first.tokens_per_s == pytest.approx(2 * second.tokens_per_s)
    assert spread_lengths(10, 1).output_tokens.max() == 1
