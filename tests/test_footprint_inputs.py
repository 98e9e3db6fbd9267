"""What footprints are computed from: rows of the reference tables, grids, board power."""

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetinfer.errors import InputError
from hetinfer.footprint import carbon, grid, inputs, power
from hetinfer.footprint.inputs import Range
from hetinfer.paths import data_dir
from hetinfer.runs import load_recorded

LOADERS = (
    inputs.load_power_draws,
    inputs.load_embodied_carbon,
    inputs.load_operation,
    grid.load_grid,
)


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
