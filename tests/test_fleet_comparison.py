import dataclasses

import numpy as np
import pandas as pd
import pytest

from hetinfer import claims
from hetinfer.errors import InputError
from hetinfer.figures import fleet as figures
from hetinfer.fleet.availability import Ownership
from hetinfer.fleet.checking import CheckSize, cheaper_counts, check_sizes, hourly_targets, improve
from hetinfer.fleet.comparison import (
    case_of,
    compare_fleets,
    compare_policies,
    frontier,
    policies_on_one_fleet,
    reclaim_table,
)
from hetinfer.fleet.demand_file import load_demand
from hetinfer.fleet.display import counts_of, fleet_text, plan_text
from hetinfer.fleet.planning import plan_fleet
from hetinfer.fleet.routing import POLICIES
from hetinfer.fleet.scenarios import MIXES, classes_of, configurations_of, curves_of, demand_of
from hetinfer.hardware import load_price_scenarios, load_prices
from hetinfer.paths import root_dir
from hetinfer.simulation.fitted import DEFAULT_LENGTHS, Calibration
from hetinfer.workload import Lengths

MODEL = "deepseek-ai/DeepSeek-R1-Distill-Llama-8B"
LENGTHS = Lengths(np.array([64, 128, 256, 400]), np.array([32, 64, 128, 300]))
NO_FITS = Calibration(0, {MODEL: LENGTHS, DEFAULT_LENGTHS: LENGTHS}, ())
SIZES = check_sizes(0, window_s=10.0, replications=2, long_window_s=20.0, hours=1)
CASE = {"mix": "mixed day", "latency": "standard"}


@pytest.fixture(scope="module")
def curves():
    return curves_of(NO_FITS, MODEL, load_prices(), 500, 0)


@pytest.fixture(scope="module")
def case(curves):
    return case_of(NO_FITS, curves, MODEL, load_prices(), **CASE)


@pytest.fixture(scope="module")
def compared(curves):
    scenarios = load_price_scenarios()
    latencies = ["standard"]
    return compare_fleets(NO_FITS, {MODEL: curves}, scenarios, SIZES, latencies=latencies)


def test_every_case_is_planned_kept_and_never_dearer_than_one_tier(compared):
    assert len(MIXES) * len(load_price_scenarios()) == len(compared)
    assert (compared["attainment_frac"] >= compared["wanted_frac"]).all()
    for name in ("enterprise_usd_per_h", "consumer_usd_per_h"):
        assert (compared["best_usd_per_h"] <= compared[name].fillna(np.inf) + 1e-9).all()
    assert (compared["best_usd_per_h"] >= compared["bound_usd_per_h"]).all()
    both = compared["best_fleet"].str.contains("H100") & compared["best_fleet"].str.contains("4090")
    assert not (compared["mixed"] & ~both).any()


def test_no_policy_is_cheaper_than_the_bound(case):
    table = compare_policies(case, SIZES)
    assert list(POLICIES) == table["policy"].tolist()
    assert (table["over_bound"].dropna() >= 1).all()
    assert not table.set_index("policy").loc["one-tier", "fleet"].count("4090")


def test_every_policy_is_judged_on_one_fleet(case):
    plan = plan_fleet(case.demand, case.offers, case.capacities)
    table = policies_on_one_fleet(case, plan, CheckSize(5.0, 1, 0, 1))
    assert set(POLICIES) == set(table["policy"])
    assert table["attainment_frac"].between(0, 1).all()


def test_owners_who_take_cards_back_cost_cards(case):
    owners = [Ownership(1.0, 60.0), Ownership(0.6, 20.0)]
    table = reclaim_table(case, owners, CheckSize(60.0, 2, 0))
    assert [1.0, 0.6] == table["available_frac"].tolist()
    assert table["usd_per_h"].is_monotonic_increasing
    assert table["fixed_attainment_frac"].iloc[1] < table["fixed_attainment_frac"].iloc[0]
    assert (table["fixed_attainment_frac"] <= table["attainment_frac"] + 1e-12).all()
    assert 0 == table["retried_frac"].iloc[0] == table["lost_frac"].iloc[0]


def test_a_price_on_carbon_buys_cleaner_fleets(case):
    table = frontier(case, [0.0, 100.0], [0.9], SIZES)
    assert table["kg_per_h"].iloc[1] <= table["kg_per_h"].iloc[0]
    assert table["usd_per_h"].iloc[0] <= table["usd_per_h"].iloc[1]


def test_figures_are_drawn_from_their_tables(case, compared):
    assert 3 == len(figures.draw_fleet_costs(compared).axes)
    policies = pd.DataFrame(
        {
            "policy": ["a", "b"],
            "usd_per_h": [2.0, np.nan],
            "fleet": ["1 of 1x H100", ""],
            "over_bound": [2.0, np.nan],
        }
    )
    assert figures.draw_policy_costs(policies).axes
    reclaim = pd.DataFrame(
        {
            "available_frac": [1.0, 0.9],
            "notice_s": [0.0, 0.0],
            "usd_per_h": [1.0, 1.5],
            "fixed_attainment_frac": [0.99, 0.9],
        }
    )
    assert 2 == len(figures.draw_reclaim(reclaim).axes)
    plans = pd.DataFrame(
        {
            "attainment_target_frac": [0.99, 0.99],
            "usd_per_h": [1.0, 1.5],
            "kg_per_h": [1.0, 0.9],
            "mixed": [False, True],
        }
    )
    assert figures.draw_frontier(plans).axes


def test_cheaper_fleets_are_listed_by_cost_and_the_first_that_holds_is_taken(case):
    plan = plan_fleet(case.demand, case.offers, case.capacities)
    plan = dataclasses.replace(plan, counts=(2, 1), usd_per_h=4.25)
    counts = cheaper_counts(plan)
    costs = [2.0 * h + 0.25 * c for h, c in counts]
    assert costs == sorted(costs) and (2, 0) in counts and (2, 1) not in counts
    holds = pd.DataFrame({"class": ["chat"], "attainment_frac": [0.5], "holds": [True]})
    assert 0 < plan.g_per_h
    better, _ = improve(plan, lambda fleet: holds.assign(holds=fleet.counts == (1, 7)))
    assert (1, 7) == better.counts


def test_a_window_allows_its_share_of_an_hours_growth():
    classes = classes_of(LENGTHS)
    batch, chat = hourly_targets((classes["batch"], classes["chat"]), 600.0)
    assert 10.0 == batch.ttft_target_s
    assert classes["chat"] == chat
    assert 60.0 == hourly_targets((classes["batch"],), 7200.0)[0].ttft_target_s


def test_tight_targets_scale_what_is_latency_critical_only():
    tight, standard = classes_of(LENGTHS, "tight"), classes_of(LENGTHS)
    assert 0.5 * standard["agents"].ttft_target_s == tight["agents"].ttft_target_s
    assert standard["batch"] == tight["batch"]
    with pytest.raises(InputError, match="unknown latency target: got 'soon'"):
        classes_of(LENGTHS, "soon")
    with pytest.raises(InputError, match="unknown mix"):
        demand_of("games", standard)


def test_small_models_scale_out_on_single_cards_and_large_ones_need_several():
    assert [("h100-pcie", 1), ("rtx-4090", 1)] == configurations_of(MODEL)
    assert [1, 2, 4] == [n for _, n in configurations_of("DeepSeek-R1-Distill-Qwen-14B")]
    assert {"study-2025"} <= set(load_price_scenarios())


def test_claims_on_routing_are_judged_by_simulated_fleets(compared):
    study = claims.load_study()
    known = claims.load_claims()

    def judged(claim_id, fleets):
        finding = claims.FINDERS[claim_id](
            known[claim_id], dataclasses.replace(study, fleets=fleets)
        )
        return finding, *claims.judge(known[claim_id], finding)

    assert "not-testable" == judged("S39", None)[1]
    finding, verdict, _ = judged("S39", compared)
    assert "not-testable" != verdict
    assert f"of {len(compared)} cases" in finding.recomputed
    assert f"of {len(compared)} simulated cases" in judged("S13", compared)[0].note
    assert "reproduced" == judged("S39", compared.assign(mixed=True))[1]
    some = judged("S39", compared.assign(mixed=compared["mix"] == "chat"))
    assert some[2].startswith("for the mix chat")


def test_a_plan_and_a_fleet_are_told_in_lines():
    file = load_demand(root_dir() / "notebooks" / "demand.toml", NO_FITS)
    text = plan_text(file, 0, checked=False)
    assert "unchecked: no simulation was run" in text
    copies = ["h100-pcie=1", "rtx-4090:1=2"]
    options = {"policy": "slo-aware", "hour": 3, "duration_s": 30.0, "seed": 0}
    told = fleet_text(file, copies, **options)
    assert "on 1 of 1x H100, 2 of 1x 4090: 2.50 USD/h" in told
    assert "agents: " in told and "% in time (wanted 99.0 %)" in told
    assert (1, 2) == counts_of(file, copies)
    with pytest.raises(InputError, match="no such hour: got 24"):
        fleet_text(file, copies, **options | {"hour": 24})
    with pytest.raises(InputError, match=r"copies: got 'rtx-4090:8=1'"):
        counts_of(file, ["rtx-4090:8=1"])


def test_a_fleet_serves_a_trace(tmp_path):
    path = tmp_path / "trace.csv"
    rows = [f"2023-11-16 18:15:{second}.5,374,44" for second in range(10, 40)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    file = load_demand(root_dir() / "notebooks" / "demand.toml", NO_FITS)
    options = {"policy": "overflow", "hour": 0, "duration_s": 1.0, "seed": 0}
    told = fleet_text(file, ["h100-pcie=1"], **options, trace=path)
    assert "30 requests; served by 1x H100 100 %" in told
