"""Energy and carbon of machines, what they compare to, and what is found of the claims."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from hetinfer import published
from hetinfer.cli import app
from hetinfer.errors import InputError
from hetinfer.footprint import carbon, comparison, findings, grid, power, study, summary
from hetinfer.hardware import load_prices
from hetinfer.metrics import with_costs
from hetinfer.runs import load_recorded

# a card of 300 W busy and 100 W idle in a host of 200 and 50 W, half of the time; 10 and 30 kg
ROUND_YEAR = 1e6 / carbon.SECONDS_PER_YEAR  # a lifetime of 10^6 s


def a_machine(**changed: float) -> carbon.Machine:
    quantities = {
        "board_w": 300.0,
        "idle_w": 100.0,
        "host_busy_w": 200.0,
        "host_idle_w": 50.0,
        "pue": 1.2,
        "card_kg": 10.0,
        "card_lifetime_years": ROUND_YEAR,
        "host_kg": 30.0,
        "host_lifetime_years": ROUND_YEAR,
        "utilisation_frac": 0.5,
    }
    arrays = {name: np.array([value]) for name, value in (quantities | changed).items()}
    return carbon.Machine(gpu="a", site="home", cards_per_host=None, **arrays)


@pytest.fixture(scope="module")
def table_2():
    runs = with_costs(load_recorded(), load_prices())
    return published.table_2_runs(published.load_published_tables(), runs)


@pytest.fixture(scope="module")
def pairs():
    return comparison.equal_work(load_recorded(), ttft_target_s=2.0)


@pytest.fixture(scope="module")
def machines():
    return carbon.sample_machines(("rtx-4090", "h100-pcie"), 2000, np.random.default_rng(1))


# ---- energy and carbon of one machine


def test_energy_counts_waiting_hours_host_and_site():
    # (300 + 200 + (100 + 50) * 0.5 / 0.5) * 1.2 = 780 W; at 1000 tokens per s 0.78 J each
    assert carbon.kwh_per_mtoken(a_machine(), 1, 1000.0).item() == pytest.approx(0.78 / 3.6)


def test_second_card_shares_the_host():
    # (600 + 200 + 200 + 50) * 1.2 = 1260 W
    assert carbon.kwh_per_mtoken(a_machine(), 2, 1000.0).item() == pytest.approx(1.26 / 3.6)


def test_server_is_shared_by_its_cards():
    shared = replace(a_machine(), cards_per_host=4.0)
    # (300 + 50 + 100 + 12.5) * 1.2 = 555 W
    assert carbon.kwh_per_mtoken(shared, 1, 1000.0).item() == pytest.approx(0.555 / 3.6)


def test_boundary_of_the_study_counts_boards_under_load_alone():
    boards = carbon.cards_only(a_machine())
    assert carbon.kwh_per_mtoken(boards, 1, 1000.0).item() == pytest.approx(0.3 / 3.6)


def embodied(holding: carbon.Holding, **kwargs: float) -> float:
    return carbon.embodied_g_per_mtoken(a_machine(), 1, 1000.0, holding=holding, **kwargs).item()


def test_owned_hardware_carries_the_share_of_life_taken():
    # 40 kg over 10^6 s are 0.04 g/s; a million tokens at 1000 per s take 1000 s
    assert embodied("owned") == pytest.approx(40)


def test_new_hardware_carries_its_idle_hours_too():
    assert embodied("new") == pytest.approx(80)


def test_idle_hardware_carries_the_share_of_wear():
    assert [embodied("idle", wear_frac=w) for w in (0.0, 0.25, 1.0)] == pytest.approx([0, 10, 40])


def test_share_of_wear_above_one_is_an_error():
    with pytest.raises(InputError, match="share of wear"):
        embodied("idle", wear_frac=1.5)


def test_unknown_holding_lists_the_known():
    with pytest.raises(InputError, match="one of new, owned, idle"):
        embodied("leased")


def test_nothing_served_is_an_error():
    with pytest.raises(InputError, match="nothing served"):
        carbon.kwh_per_mtoken(a_machine(), 1, 0.0)


@pytest.mark.parametrize("utilisation", [0.0, 1.2])
def test_utilisation_outside_its_range_is_an_error(utilisation):
    with pytest.raises(InputError, match="utilisation not a share"):
        carbon.sample_machine(
            carbon.known_machine("rtx-4090"), np.array([utilisation]), np.random.default_rng(0)
        )


def test_card_without_embodied_carbon_is_an_error():
    with pytest.raises(InputError, match="no embodied carbon: got 'l40s'"):
        carbon.known_machine("l40s", "card limit")


def test_unknown_site_is_an_error():
    with pytest.raises(InputError, match="unknown site"):
        carbon.known_machine("rtx-4090", site="ship")


# ---- comparison


def lines(kwh=2.0, made=10.0, against_kwh=1.0, against_made=30.0) -> comparison.Lines:
    sides = (kwh, made, against_kwh, against_made)
    return comparison.Lines(*(np.array([[value]]) for value in sides))


def test_lines_cross_where_totals_are_equal():
    # 10 + 2 g = 30 + g
    assert comparison.cleaner_below_g_per_kwh(lines()).item() == 20


def test_less_of_everything_is_cleaner_on_every_grid():
    assert math.inf == comparison.cleaner_below_g_per_kwh(lines(kwh=0.5)).item()


def test_more_of_everything_is_cleaner_on_none():
    assert comparison.cleaner_below_g_per_kwh(lines(made=40.0)).item() == 0


def test_more_made_and_less_energy_is_cleaner_only_above():
    assert math.isnan(comparison.cleaner_below_g_per_kwh(lines(kwh=0.5, made=40.0)).item())


def test_zero_carbon_grid_leaves_embodied_carbon_alone():
    assert [comparison.cleaner_frac(lines(made=made), 0.0).item() for made in (29.0, 31.0)] == [
        1,
        0,
    ]


def test_zero_embodied_carbon_leaves_the_energy_ratio(pairs):
    bare = a_machine(card_kg=0.0, host_kg=0.0)
    contest = comparison.Contest(bare, "new", replace(bare), "new")
    found = comparison.lines_of(contest, pairs)
    faster = pairs["baseline_tokens_per_s"] > pairs["throughput_tokens_per_s"]
    one_card = pairs["gpu_count"] == 1
    ratio = (found.kwh / found.against_kwh)[one_card, 0]
    speed = (pairs["baseline_tokens_per_s"] / pairs["throughput_tokens_per_s"])[one_card]
    assert np.allclose(speed, ratio) and faster[one_card].any()
    assert np.abs(found.embodied_g).max() + np.abs(found.against_embodied_g).max() == 0


def test_equal_work_pairs_equal_models_and_rates(pairs):
    assert len(pairs) == 55
    assert not pairs.duplicated(comparison.PAIR).any()


def test_pair_meets_the_target_only_if_both_sides_do(pairs):
    slower = pairs[["ttft_p99_s", "baseline_ttft_p99_s"]].max(axis=1)
    assert (pairs["meets_target"] == (slower <= 2.0)).all()
    assert 0 < pairs["meets_target"].sum() < len(pairs)


def test_target_of_zero_is_an_error():
    with pytest.raises(InputError, match="latency target not positive"):
        comparison.equal_work(load_recorded(), ttft_target_s=0.0)


@pytest.mark.parametrize(
    ("share", "verdict"), [(1.0, "cleaner"), (0.975, "cleaner"), (0.5, "open"), (0.0, "dirtier")]
)
def test_verdict_follows_from_the_samples(share, verdict):
    assert verdict == comparison.verdict_of(share)


def test_shares_of_crossings_add_up_to_one(pairs, machines):
    contest = comparison.Contest(machines["rtx-4090"], "owned", machines["h100-pcie"], "new")
    table = comparison.crossing_table(comparison.lines_of(contest, pairs), pairs)
    shares = table[["always_frac", "below_frac", "above_frac", "never_frac"]].sum(axis=1)
    assert np.allclose(1, shares)


def test_tornado_ranks_inputs_by_what_they_move(pairs):
    known = [carbon.known_machine(gpu) for gpu in ("rtx-4090", "h100-pcie")]
    table = comparison.tornado(*known, pairs.iloc[:1], holdings=("owned", "new"), g_per_kwh=242.0)
    assert table["swing_frac"].is_monotonic_decreasing
    inside = table[["ratio_low", "ratio_high"]].agg(["min", "max"], axis=1)
    slack = 1e-12
    assert (inside["min"] <= table["ratio_middle"] + slack).all()
    assert (inside["max"] >= table["ratio_middle"] - slack).all()


# ---- the study


def test_table_3_is_reproduced_to_its_printed_digits(table_2):
    assert study.table_3(table_2)["stepwise_agrees"].sum() == 11


def test_table_3_unrounded_differs_in_the_two_cells_that_follow_from_a_rounded_one(table_2):
    table = study.table_3(table_2)
    differing = table.loc[~table["unrounded_agrees"], ["item", "name", "printed"]]
    assert differing.to_numpy().tolist() == [
        ["1xh100-pcie", "tokens per kWh", "15.4"],
        ["1xh100-pcie", "carbon intensity", "15.7"],
    ]
    assert table["unrounded"][3] == pytest.approx(15.49, abs=0.005)


def test_measured_runs_add_their_own_energy():
    runs = load_recorded().head(1).assign(energy_j=1000.0)
    table = study.energy_table(
        runs, ttft_target_s=2.0, n_samples=10, noise_frac=0.0, rng=np.random.default_rng(0)
    )
    own = table[table["power"] == study.MEASURED_RUN]
    tokens = runs["input_tokens"] + runs["output_tokens"]
    assert own["j_per_token"].tolist() == pytest.approx((1000 / tokens).tolist())


def test_energy_table_of_recorded_runs_has_no_measured_run():
    table = study.energy_table(
        load_recorded(), ttft_target_s=2.0, n_samples=10, noise_frac=0.0,
        rng=np.random.default_rng(0),
    )  # fmt: skip
    assert set(power.POWER_ASSUMPTIONS) == set(table["power"])


# ---- findings


@pytest.fixture(scope="module")
def energy(table_2, pairs):
    return findings.energy_findings(
        table_2, pairs, n_samples=500, noise_frac=0.003, rng=np.random.default_rng(0)
    )


def test_study_compares_sixteen_requests_per_second_with_four(energy):
    rows = energy[(energy["claim"] == "S10") & (energy["power"] == "as printed")].iloc[0]
    assert (rows["rate_requests_per_s"], rows["against_rate_requests_per_s"]) == (16, 4)
    assert rows["value"] == pytest.approx(3.1, abs=0.05)


def test_every_other_ratio_is_at_equal_rates(energy):
    ratios = energy[energy["claim"] == "S10"]
    unequal = ratios["rate_requests_per_s"] != ratios["against_rate_requests_per_s"]
    assert len(power.POWER_ASSUMPTIONS) == unequal.sum()


def test_values_lie_within_their_intervals(energy, pairs, machines):
    both = pd.concat(
        [
            energy,
            findings.carbon_findings(
                pairs.iloc[:2], machines["rtx-4090"], machines["h100-pcie"],
                boundary="machine", power="measured draw",
            ),
        ]
    )  # fmt: skip
    assert (both["low"] <= both["value"]).all() and (both["value"] <= both["high"]).all()
    assert list(both.columns) == findings.FINDING_COLUMNS


def test_regions_of_a_pair_are_each_judged_once(pairs, machines):
    table = findings.crossing_findings(
        pairs, machines["rtx-4090"], machines["h100-pcie"], boundary="machine", power="x"
    )
    counts = table[table["quantity"].str.startswith("regions ")]
    per_pair = counts.groupby(["model", "configuration", "rate_requests_per_s", "holding"])["value"]
    assert {len(grid.load_grid())} == set(per_pair.sum())


# ---- the command line's summary


def a_service(**changed: object) -> summary.Service:
    service = summary.Service("DeepSeek-R1-Distill-Qwen-14B", "rtx-4090", 2, 4.0, "FR")
    return replace(service, **changed)


def test_summary_of_the_studys_4090_pair_has_its_printed_energy():
    table = summary.summarise(load_recorded(), a_service(), np.random.default_rng(0))
    value = table.set_index("quantity")["value"]
    assert value["energy, boards, as printed"] == pytest.approx(900 / 1250.59, rel=1e-4)
    assert value["embodied carbon, idle"] == 0
    assert value["total carbon, idle"] == pytest.approx(value["operational carbon"])


def test_summary_reads_as_lines_with_evidence():
    service = a_service()
    table = summary.summarise(load_recorded(), service, np.random.default_rng(0))
    lines = summary.summary_text(table, service).splitlines()
    assert lines[0].endswith("on 2x 4090 at 4 requests/s, FR (41.4 g CO2e/kWh)")
    assert all(line.endswith("]") for line in lines[1:])


def test_summary_of_a_metered_run_shows_its_own_energy():
    runs = load_recorded().assign(energy_j=1000.0)
    table = summary.summarise(runs, a_service(), np.random.default_rng(0))
    assert "energy, boards, measured run" in set(table["quantity"])


def test_service_that_no_run_measured_lists_what_there_is():
    with pytest.raises(
        InputError, match=r"no such run: got 3x rtx-4090 .* one of 1x h100-pcie, 2x"
    ):
        summary.find_cell(load_recorded(), a_service(gpu_count=3))


def test_command_prints_the_summary():
    options = {"model": "phi-4", "gpu": "h100-pcie", "gpus": "1", "rate": "16", "region": "se"}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    result = CliRunner().invoke(app, ["footprint", *words])
    assert result.exit_code == 0
    assert result.stdout.startswith("phi-4 on 1x H100 at 16 requests/s, SE (35.3 g CO2e/kWh)")
