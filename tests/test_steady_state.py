import numpy as np
import pytest

from hetinfer.hardware import load_prices
from hetinfer.runs import average_replicates, load_recorded
from hetinfer.simulation.capacity import Load
from hetinfer.simulation.fitted import load_calibrations
from hetinfer.simulation.report import capacity_text, find_served, simulate_text
from hetinfer.simulation.steady_state import (
    CLAIM_MODEL,
    capacity_table,
    claim_table,
    cost_table,
    drain_table,
    healthy_fits,
    latency_curves,
    scenarios,
    sensitivity_table,
)

BEST = load_calibrations()[0]
RECORDED = average_replicates(load_recorded())
PAIR = RECORDED[(RECORDED["model"] == CLAIM_MODEL) & RECORDED["gpu_count"].isin([1, 4])]


@pytest.fixture(scope="module")
def capacities():
    cells = scenarios([BEST], PAIR, requests=600, seeds=[1])
    return capacity_table(latency_curves(cells, jobs=1), [0.5, 2.0])


def test_several_4090s_get_a_host_that_keeps_up_and_others_keep_theirs():
    one, four = healthy_fits(BEST, PAIR)
    assert (one.gpu, four.gpu_count) == ("h100-pcie", 4)
    assert one in BEST.fits
    assert four.engine.front_end.stall_frac == 0.0


def test_capacity_has_a_row_for_each_configuration_cache_and_target(capacities):
    assert len(capacities) == 2 * 2 * 2
    assert (capacities["low"] <= capacities["capacity_requests_per_s"]).all()
    wide = capacities.pivot_table("capacity_requests_per_s", ["gpu", "cache"], "ttft_p99_target_s")
    assert (wide[2.0] >= wide[0.5]).all()
    assert wide.loc[("h100-pcie", "cold"), 2.0] > wide.loc[("rtx-4090", "cold"), 2.0]


def test_share_and_cost_hold_steady_state_beside_the_study(capacities):
    costs = cost_table(capacities, RECORDED, load_prices(), 2.0).set_index("gpu")
    assert costs.loc["h100-pcie", ["share_steady", "share_study"]].tolist() == [1.0, 1.0]
    four = costs.loc["rtx-4090"]
    price = 4 * 0.25 / 3600 / four["throughput_tokens_per_s_steady"] * 1e6
    assert four["cost_usd_per_mtoken_steady"] == pytest.approx(price)
    assert four["share_steady"] < four["share_study"]


def test_longer_runs_achieve_more_because_the_drain_weighs_less():
    drain = drain_table(BEST, PAIR[PAIR["gpu"] == "h100-pcie"], [200, 2000], 1)
    assert np.diff(drain["throughput_requests_per_s"])[0] > 1


def test_longer_answers_lower_capacity():
    table = sensitivity_table(BEST, PAIR[PAIR["gpu"] == "h100-pcie"], 2.0, 600)
    ratio = table.set_index("assumption")["ratio"]
    assert ratio["as fitted"] == 1.0
    assert ratio["answers 20 % longer"] < 1.0


def test_claims_that_need_a_simulation_have_a_cold_and_a_warm_side():
    claims = claim_table(BEST, 600, 1, load_prices()).set_index("id")
    assert list(claims.index) == ["S06", "S14", "S15", "S16", "S17", "S18"]
    assert set(claims["evidence"]) == {"simulated"}
    assert (claims.loc["S06", "cold"] > claims.loc["S06", "warm"]) and claims.notna().all(axis=None)


def test_text_names_what_an_engine_rests_on_and_flags_overload():
    served = find_served("DeepSeek-R1-Distill-Qwen-14B", "h100-pcie", 1)
    text = simulate_text(served, Load(served.lengths, 600), 500.0)
    assert "1x H100, fitted to its recorded runs" in text
    assert text.splitlines()[-1].startswith("overloaded: ")
    predicted = find_served("DeepSeek-R1-Distill-Qwen-1.5B", "rtx-4090", 2)
    assert "predicted from the card's constants" in predicted.title


def test_capacity_text_gives_cold_and_warm_with_a_range():
    served = find_served("DeepSeek-R1-Distill-Qwen-14B", "h100-pcie", 1)
    text = capacity_text(served, Load(served.lengths, 500), (0.5, 0.1), [1, 2])
    assert "P99 TTFT <= 500.0 ms, P99 TPOT <= 100.0 ms" in text
    assert "over 2 seeds" in text.splitlines()[-1]
    several = find_served("DeepSeek-R1-Distill-Qwen-14B", "rtx-4090", 4)
    text = capacity_text(several, Load(several.lengths, 500), (2.0, np.inf), [1])
    assert "with a host that keeps up" in text.splitlines()[0]
    assert "0.00 requests/s" not in text
