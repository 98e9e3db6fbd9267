"""Policies one by one, on views made by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetinfer.errors import InputError
from hetinfer.fleet import routing
from hetinfer.fleet.routing import POLICIES, View, choose_engine, policy_number
from hetinfer.simulation.event_loop import NOTHING

FAST, CHEAP, SLOW = range(3)


def view_of(**changed):
    """Three idle engines: a fast one in tier 0, a cheap and a slow one in tier 1; one class."""
    fields = {
        "accepts": [1, 1, 1],
        "outstanding": [0, 0, 0],
        "waiting_tokens": [0, 0, 0],
        "outstanding_tokens": [0.0, 0.0, 0.0],
        "recent_ttft_s": [0.0, 0.0, 0.0],
        "tier": [0, 1, 1],
        "tokens_per_s": [1000.0, 500.0, 100.0],
        "prefill_s_per_token": [1e-4, 2e-4, 1e-3],
        "step_s": [0.01, 0.02, 0.05],
        "kv_tokens": [10_000, 5_000, 1_000],
        "usd_per_mtoken": [2.0, 0.5, 1.0],
        "g_per_mtoken": [1.0, 3.0, 2.0],
        "home_tier": [1],
        "target_s": [0.5],
        "answer_tokens": [100.0],
        "most_outstanding": [[10.0, 5.0, 2.0]],
    }
    return View(**{name: np.array(value) for name, value in (fields | changed).items()})


def chosen(policy, view, prompt_tokens=100):
    return POLICIES[policy](view, 0, prompt_tokens)


def test_idle_engines_are_chosen_as_each_policy_ranks_them():
    view = view_of()
    expected = {
        "one-tier": FAST,
        "static": CHEAP,
        "overflow": FAST,
        "least-work": FAST,
        "slo-aware": FAST,
        "cost-first": CHEAP,
        "carbon-aware": FAST,
        "class-overflow": CHEAP,
    }
    assert expected == {name: chosen(name, view) for name in POLICIES}


def test_ttft_is_predicted_from_prompts_before_and_what_the_cache_cannot_hold():
    view = view_of(waiting_tokens=[0, 0, 300], outstanding_tokens=[0.0, 0.0, 1_200.0])
    expected_s = 0.05 + (300 + 100) * 1e-3 + (1_200 + 100 + 100 - 1_000) / 100.0
    assert expected_s == pytest.approx(routing.predicted_ttft_s(view, SLOW, 0, 100))
    assert pytest.approx(0.01 + 100e-4) == routing.predicted_ttft_s(view, FAST, 0, 100)


def test_targets_are_kept_only_by_open_engines_with_room():
    assert routing.keeps_targets(view_of(), CHEAP, 0, 100)
    assert not routing.keeps_targets(view_of(accepts=[1, 0, 1]), CHEAP, 0, 100)
    assert not routing.keeps_targets(view_of(outstanding=[0, 5, 0]), CHEAP, 0, 100)
    assert not routing.keeps_targets(view_of(), CHEAP, 0, 2_500)  # its own prefill takes 0.5 s


def test_work_is_weighted_by_speed():
    assert CHEAP == chosen("least-work", view_of(outstanding_tokens=[500.0, 200.0, 60.0]))


def test_overflow_leaves_the_first_tier_only_when_it_is_full():
    some = view_of(outstanding=[9, 0, 0], outstanding_tokens=[5_000.0, 0.0, 0.0])
    full = view_of(outstanding=[10, 0, 0], outstanding_tokens=[5_000.0, 0.0, 0.0])
    assert (FAST, CHEAP) == (chosen("overflow", some), chosen("overflow", full))


def test_a_class_leaves_its_own_tier_only_when_that_is_full_and_waits_there_when_all_are():
    home_full = view_of(outstanding=[9, 5, 2])
    all_full = view_of(outstanding=[10, 5, 2], outstanding_tokens=[0.0, 900.0, 100.0])
    assert SLOW == chosen("class-overflow", view_of(outstanding=[0, 5, 1]))
    assert FAST == chosen("class-overflow", home_full)
    assert SLOW == chosen("class-overflow", all_full)  # 1 s of work, where the cheap one has 1.8


def test_the_cheapest_that_keeps_targets_comes_first_and_no_card_that_never_does():
    assert SLOW == chosen("cost-first", view_of(outstanding=[0, 5, 0]))
    never = view_of(most_outstanding=[[10.0, 0.0, 0.0]], outstanding=[10, 0, 0])
    assert FAST == chosen("cost-first", never)


@pytest.mark.parametrize("policy", POLICIES)
def test_closed_engines_are_never_chosen(policy):
    assert chosen(policy, view_of(accepts=[0, 0, 0])) == NOTHING
    assert chosen(policy, view_of(accepts=[1, 0, 0])) == FAST


@given(
    policy=st.sampled_from(list(POLICIES)),
    outstanding=st.lists(st.integers(0, 12), min_size=3, max_size=3),
    tokens=st.lists(st.floats(0, 20_000), min_size=3, max_size=3),
    prompt=st.integers(1, 4_000),
)
def test_a_policy_has_the_same_number_in_the_loop(policy, outstanding, tokens, prompt):
    view = view_of(outstanding=outstanding, outstanding_tokens=tokens)
    assert chosen(policy, view, prompt) == choose_engine(policy_number(policy), view, 0, prompt)


def test_an_unknown_policy_is_told_the_known():
    with pytest.raises(InputError, match="got 'fastest', expected one of one-tier, static, over"):
        policy_number("fastest")
