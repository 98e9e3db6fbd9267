import math
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetinfer import published
from hetinfer.errors import InputError
from hetinfer.footprint import carbon, comparison, findings, grid, inputs, power, study
from hetinfer.footprint.inputs import Range
from hetinfer.hardware import load_prices
from hetinfer.metrics import with_costs
from hetinfer.paths import data_dir
from hetinfer.runs import load_recorded

LOADERS = (
    inputs.load_power_draws,
    inputs.load_embodied_carbon,
    inputs.load_operation,
    grid.load_grid,
)
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


@pytest.fixture
def reference(tmp_path, monkeypatch):
    """A copy of the data that a test may spoil; caches are emptied before and after."""
    source = data_dir("reference")
    folder = tmp_path / "data" / "reference"
    shutil.copytree(source, folder)
    (tmp_path / "data" / "recorded").mkdir()
    monkeypatch.setenv("HETINFER_ROOT", str(tmp_path))
    for load in LOADERS:
        load.cache_clear()
    yield folder
    for load in LOADERS:
        load.cache_clear()


def spoil(folder: Path, name: str, old: str, new: str) -> None:
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1))


@pytest.fixture(scope="module")
def table_2():
    runs = with_costs(load_recorded(), load_prices())
    return published.table_2_runs(published.load_published_tables(), runs)


@pytest.fixture(scope="module")
def pairs():
    return comparison.equal_work(load_recorded(), ttft_target_s=2.0)


@pytest.fixture(scope="module")
def machines():
    rng = np.random.default_rng(1)
    utilisation = carbon.sample_utilisation(2000, rng)
    return {
        gpu: carbon.sample_machine(carbon.known_machine(gpu), utilisation, rng)
        for gpu in ("rtx-4090", "h100-pcie")
    }


# ---- inputs


def test_every_row_has_year_source_and_grade():
    rows = [
        *inputs.load_power_draws(),
        *inputs.load_embodied_carbon().values(),
        *inputs.load_operation().values(),
        *grid.load_grid().values(),
    ]
    assert all(2000 < row.year < 2100 and row.source and row.grade for row in rows)


def test_samples_of_a_range_without_best_are_uniform():
    samples = inputs.sample_range(Range(2, 4), 20_000, np.random.default_rng(0))
    expected = 3, 2 / math.sqrt(12)
    assert (samples.mean(), samples.std()) == pytest.approx(expected, rel=0.02)


def test_samples_of_a_range_with_best_are_triangular():
    samples = inputs.sample_range(Range(0, 6, 3), 20_000, np.random.default_rng(0))
    expected = (0 + 6 + 3) / 3, 6 / math.sqrt(24)
    assert (samples.mean(), samples.std()) == pytest.approx(expected, rel=0.02)


@given(st.lists(st.floats(0, 1e6), min_size=3, max_size=3).map(sorted), st.integers(0, 9))
def test_samples_stay_within_their_range(three, seed):
    low, best, high = three
    samples = inputs.sample_range(Range(low, high, best), 50, np.random.default_rng(seed))
    slack = 1e-9 * high
    assert (samples >= low - slack).all() and (samples <= high + slack).all()


def test_equal_seeds_give_equal_samples():
    first, second = (
        inputs.sample_range(Range(1, 2), 5, np.random.default_rng(7)) for _ in range(2)
    )
    assert first.tolist() == second.tolist()


def test_negative_lifetime_names_its_row(reference):
    spoil(reference, "embodied_carbon.csv", "567,5,2025", "567,-5,2025")
    with pytest.raises(InputError, match=r"lifetime not positive: got -5.*line 3"):
        inputs.load_embodied_carbon()


def test_range_out_of_order_names_its_row(reference):
    spoil(reference, "embodied_carbon.csv", "194,100,250", "194,200,250")
    with pytest.raises(InputError, match=r"range out of order.*line 4"):
        inputs.load_embodied_carbon()


def test_utilisation_above_one_names_its_row(reference):
    spoil(reference, "operation.csv", "workload,,0.3,0.6", "workload,,0.3,1.6")
    with pytest.raises(InputError, match=r"utilisation not a share: got 0.3 to 1.6.*line 4"):
        inputs.load_operation()


def test_negative_power_names_its_row(reference):
    spoil(reference, "power_draws.csv", "batch 8,443", "batch 8,-443")
    with pytest.raises(InputError, match=r"negative power: got -443.*line 2"):
        inputs.load_power_draws()


def test_missing_operation_row_lists_what_there_is():
    with pytest.raises(InputError, match=r"no pue: got none for .ship.*there is data-centre, home"):
        inputs.find_operation("pue", "ship")


def test_a_changed_row_changes_what_follows(reference):
    before = carbon.known_machine("h100-pcie").card_kg
    spoil(reference, "embodied_carbon.csv", "h100-pcie,164,164,567", "h100-pcie,300,164,567")
    inputs.load_embodied_carbon.cache_clear()
    assert (before.best, carbon.known_machine("h100-pcie").card_kg.best) == (164, 300)


# ---- grid


def test_study_uses_242_g_per_kwh():
    assert grid.find_grid("eu27").g_co2_per_kwh == 242


def test_unknown_region_lists_the_known():
    with pytest.raises(InputError, match=r"unknown region: got 'XX', expected one of CA, CN"):
        grid.find_grid("XX")


def test_constant_profile_repeats_the_yearly_average():
    assert grid.constant_profile("EU27", 3).tolist() == [242.0] * 3


def hourly(path: Path, rows: list[str]) -> Path:
    path.write_text("region,start_utc,intensity,unit,source\n" + "\n".join(rows) + "\n")
    return path


GOOD = ["FR,2025-06-01T00:00Z,38,g_co2e_per_kwh,x", "FR,2025-06-01T01:00Z,36,g_co2e_per_kwh,x"]


def test_hourly_profile_reads_in_order(tmp_path):
    profile = grid.load_hourly_intensity(hourly(tmp_path / "p.csv", GOOD))
    assert (profile.region, profile.start_utc) == ("FR", "2025-06-01T00:00:00+00:00")
    assert grid.first_hours(profile, 2).tolist() == [38, 36]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("FR,2025-06-01T03:00Z,36,g_co2e_per_kwh,x", "gap in the hours: .*line 4"),
        ("FR,2025-06-01T01:00Z,36,g_co2e_per_kwh,x", "hours out of order: .*line 4"),
        ("FR,2025-06-01T02:00Z,36,kg_co2e_per_kwh,x", "wrong unit: got 'kg_.*line 4"),
        ("FR,2025-06-01T02:00Z,36000,g_co2e_per_kwh,x", "impossible intensity: got 36000.*line 4"),
        ("FR,2025-06-01T02:00Z,-1,g_co2e_per_kwh,x", "impossible intensity: got -1.*line 4"),
        ("FR,2025-06-01T02:00Z,,g_co2e_per_kwh,x", "impossible intensity: got nan.*line 4"),
        ("DE,2025-06-01T02:00Z,36,g_co2e_per_kwh,x", "second region: got DE.*line 4"),
        ("FR,yesterday,36,g_co2e_per_kwh,x", "not a time: got 'yesterday'.*line 4"),
    ],
)
def test_spoilt_hourly_profile_names_its_row(tmp_path, row, message):
    with pytest.raises(InputError, match=message):
        grid.load_hourly_intensity(hourly(tmp_path / "p.csv", [*GOOD, row]))


def test_hourly_profile_without_a_column_says_which(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("region,start_utc,intensity\nFR,2025-06-01T00:00Z,38\n")
    with pytest.raises(InputError, match="column missing: got unit"):
        grid.load_hourly_intensity(path)


def test_short_profile_is_an_error(tmp_path):
    profile = grid.load_hourly_intensity(hourly(tmp_path / "p.csv", GOOD))
    with pytest.raises(InputError, match="profile too short: got 2 hours, expected at least 3"):
        grid.first_hours(profile, 3)


# ---- power


def test_printed_power_is_twice_the_h100_cards_limit():
    printed, limit = (power.board_power("h100-pcie", a) for a in ("as printed", "card limit"))
    assert (printed.best, limit.best) == (700, 350)


def test_drawn_power_spans_the_cards_own_measurements():
    assert Range(246, 393) == power.drawn_power("rtx-4090")


def test_card_without_measurement_takes_its_stand_ins_shares_of_the_limit():
    assert Range(363 / 700 * 350, 690 / 700 * 350) == power.drawn_power("h100-pcie")
    assert power.power_grade("h100-pcie", "measured draw") == "derived"


def test_card_without_any_draw_is_an_error():
    with pytest.raises(InputError, match="no measured draw under load: got none for l40s"):
        power.drawn_power("l40s")


def test_printed_power_of_a_card_that_the_paper_does_not_name_is_an_error():
    with pytest.raises(InputError, match="no such board power"):
        power.board_power("l40s", "as printed")


def test_pc_around_a_card_is_the_wall_less_the_board():
    assert Range(577 - 450, 577 - 393) == power.pc_power("rtx-4090")


def test_power_curve_equals_least_squares_by_hand(reference):
    rows = [
        f"l40s,w,batch {2**k},{watts},board,B,2025,s," for k, watts in ((0, 99), (1, 122), (2, 139))
    ]
    with (reference / "power_draws.csv").open("a") as file:
        file.write("\n".join(rows) + "\n")
    curve = power.fit_power_curve("l40s")
    assert (100, 20, math.sqrt(6)) == pytest.approx(
        (curve.intercept_w, curve.slope_w_per_doubling, curve.residual_sd_w)
    )
    assert power.power_at_batch_w(curve, 2) == pytest.approx(120)
    with pytest.raises(InputError, match="batch outside the curve: got 8, expected from 1 to 4"):
        power.power_at_batch_w(curve, 8)


def test_no_curve_where_there_is_no_data():
    with pytest.raises(InputError, match="no power curve: got draws of rtx-4090 at 0 batch sizes"):
        power.fit_power_curve("rtx-4090")


def test_no_recorded_run_has_measured_energy():
    assert power.measured_power_w(load_recorded()).isna().all()


def test_measured_energy_over_duration_is_power():
    runs = load_recorded().head(2).assign(energy_j=[1000.0, np.nan], duration_s=[10.0, 10.0])
    measured = power.measured_power_w(runs)
    assert measured.iloc[0] == 100 and math.isnan(measured.iloc[1])


def test_measured_energy_of_zero_is_an_error():
    runs = load_recorded().head(2).assign(energy_j=[0.0, 1.0])
    with pytest.raises(InputError, match=r"measured energy not positive.*AceMath"):
        power.measured_power_w(runs)


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


def test_ten_thousand_samples_of_the_whole_comparison_take_under_five_seconds(pairs, table_2):
    started = time.perf_counter()
    rng = np.random.default_rng(0)
    utilisation = carbon.sample_utilisation(10_000, rng)
    cards, base = (
        carbon.sample_machine(carbon.known_machine(gpu), utilisation, rng)
        for gpu in ("rtx-4090", "h100-pcie")
    )
    findings.energy_findings(table_2, pairs, n_samples=10_000, noise_frac=0.003, rng=rng)
    findings.crossing_findings(pairs, cards, base, boundary="machine", power="measured draw")
    assert time.perf_counter() - started < 5


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
