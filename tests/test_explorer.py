import base64
import json
import math
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetinfer import explorer
from hetinfer.errors import InputError
from hetinfer.explorer import Scenario
from hetinfer.footprint.power import POWER_ASSUMPTIONS
from hetinfer.notebooks import run_notebook
from hetinfer.paths import root_dir

MODEL = "DeepSeek-R1-Distill-Qwen-14B"
CELLS = explorer.load_cells()
STUDY = explorer.scenario_of(MODEL, 16.0, "study-2025")
prices = st.floats(min_value=0.01, max_value=20)


def cost(table, configuration, rate):
    rows = table[table["rate_requests_per_s"] == rate].set_index("configuration")
    return rows.loc[configuration, "cost_usd_per_mtoken"]


def test_study_prices_give_table_2s_costs():
    table = explorer.reprice(CELLS, STUDY)
    assert math.isclose(0.0858, cost(table, "2x 4090", 16.0), abs_tol=5e-5)
    assert math.isclose(0.111, cost(table, "2x 4090", 4.0), abs_tol=5e-4)


def test_doubling_a_price_doubles_that_cards_cost_alone():
    dearer = Scenario(MODEL, 16.0, STUDY.h100_usd_per_h, 2 * STUDY.rtx_4090_usd_per_h)
    before, after = explorer.reprice(CELLS, STUDY), explorer.reprice(CELLS, dearer)
    assert math.isclose(2 * cost(before, "4x 4090", 8.0), cost(after, "4x 4090", 8.0))
    assert cost(before, "1x H100", 8.0) == cost(after, "1x H100", 8.0)


@settings(max_examples=20)
@given(h100=prices, rtx_4090=prices)
def test_a_4090_at_its_break_even_price_costs_what_the_h100_does(h100, rtx_4090):
    table = explorer.reprice(CELLS, Scenario(MODEL, 16.0, h100, rtx_4090))
    row = explorer.at_rate(table, 16.0).set_index("configuration").loc["4x 4090"]
    even = explorer.reprice(CELLS, Scenario(MODEL, 16.0, h100, row["break_even_usd_per_h"]))
    assert math.isclose(cost(even, "4x 4090", 16.0), cost(even, "1x H100", 16.0), rel_tol=1e-9)


def test_configurations_at_a_rate_come_cheapest_first():
    rows = explorer.at_rate(explorer.reprice(CELLS, STUDY), 16.0)
    assert rows["cost_usd_per_mtoken"].is_monotonic_increasing
    assert len(rows) == 4


def test_sentence_names_the_cheapest_and_what_it_saves():
    text = explorer.sentence(explorer.explore(CELLS, STUDY), STUDY)
    assert text.startswith(
        "At 16 requests/s 2x 4090 is cheapest: 0.086 USD per million tokens, 54 %"
    )


def test_sentence_compares_nothing_where_the_h100_is_cheapest():
    scenario = Scenario(MODEL, 32.0, 0.1, 2.0)
    text = explorer.sentence(explorer.explore(CELLS, scenario), scenario)
    assert "1x H100 is cheapest" in text
    assert "below" not in text


def test_figure_is_one_image_with_a_text_alternative():
    html = explorer.figure_html(explorer.explore(CELLS, STUDY), STUDY)
    assert html.startswith('<img alt="Cost per million tokens')
    assert "data:image/svg+xml;base64," in html


@pytest.mark.parametrize(
    ("scenario", "what"),
    [
        (Scenario("gpt", 16.0, 2.0, 0.25), "unknown model"),
        (Scenario(MODEL, 16.0, 0.0, 0.25), "price not positive"),
        (Scenario(MODEL, 16.0, 2.0, math.nan), "price not positive"),
        (replace(STUDY, ttft_target_s=0.0), "target not positive"),
        (replace(STUDY, region="Atlantis"), "Atlantis"),
        (replace(STUDY, power="none"), "unknown power assumption"),
        (replace(STUDY, holding="borrowed"), "unknown holding"),
        (replace(STUDY, available_frac=0.0), "availability"),
    ],
)
def test_a_scenario_that_makes_no_sense_is_an_error(scenario, what):
    with pytest.raises(InputError, match=what):
        explorer.explore(CELLS, scenario)


def test_a_rate_that_was_not_run_is_an_error():
    with pytest.raises(InputError, match="one of 1, 4, 8, 16, 32"):
        explorer.at_rate(explorer.reprice(CELLS, STUDY), 2.0)


def test_a_target_leaves_out_what_is_too_late():
    tight = replace(STUDY, ttft_target_s=0.055)
    table = explorer.explore(CELLS, tight)
    assert set(table.loc[table["in_time"], "configuration"]) == {"1x H100"}
    assert "1x H100 is cheapest of those with P99 TTFT within 100 ms" in explorer.sentence(
        table.assign(in_time=table["configuration"] == "1x H100"), replace(STUDY, ttft_target_s=0.1)
    )
    late = replace(tight, rate_requests_per_s=32.0)
    assert "At 32 requests/s no configuration keeps its P99 TTFT within 55 ms." == (
        explorer.sentence(explorer.explore(CELLS, late), late)
    )


def test_a_cleaner_grid_lowers_carbon_and_leaves_energy_and_cost():
    dirty, clean = (explorer.explore(CELLS, replace(STUDY, region=r)) for r in ("PL", "NO"))
    assert (clean["carbon_g_per_mtoken"] < dirty["carbon_g_per_mtoken"]).all()
    for same in ("energy_j_per_token", "cost_usd_per_mtoken"):
        assert clean[same].equals(dirty[same])


def test_idle_cards_carry_no_embodied_carbon_and_the_h100_stays_new():
    owned, idle = (explorer.explore(CELLS, replace(STUDY, holding=h)) for h in ("owned", "idle"))
    lighter = idle["carbon_g_per_mtoken"] < owned["carbon_g_per_mtoken"]
    assert lighter.equals(owned["gpu"] == "rtx-4090")


@pytest.mark.parametrize("power", POWER_ASSUMPTIONS)
def test_a_band_holds_its_estimate_under_every_power(power):
    table = explorer.explore(CELLS, replace(STUDY, power=power))
    assert (table["carbon_low"] <= table["carbon_g_per_mtoken"]).all()
    assert (table["carbon_g_per_mtoken"] <= table["carbon_high"]).all()


def test_table_names_the_evidence_of_each_column():
    html = explorer.table_html(explorer.explore(CELLS, STUDY), STUDY)
    assert html.count("<small>recorded</small>") == 4
    assert html.count("<small>reference</small>") == 2
    assert "0.086" in html


def test_a_scenario_is_exported_as_toml_with_what_was_chosen():
    chosen = replace(STUDY, rtx_4090_usd_per_h=0.34, ttft_target_s=0.5, available_frac=0.8)
    content = tomllib.loads(explorer.scenario_toml(CELLS, chosen))
    assert content["model"] == MODEL
    assert content["usd_per_gpu_h"] == {"h100-pcie": 2.0, "rtx-4090": 0.34}
    (served,) = content["class"]
    assert (served["ttft_target_s"], served["requests_per_s"]) == (0.5, 16.0)
    kinds = {(row["gpu"], row["gpus"]): row for row in content["configuration"]}
    assert set(kinds) == {("h100-pcie", 1), ("rtx-4090", 2), ("rtx-4090", 4), ("rtx-4090", 8)}
    assert kinds["rtx-4090", 2]["available_frac"] == 0.8
    assert "available_frac" not in kinds["h100-pcie", 1]


def test_a_scenario_without_target_is_exported_with_a_minute():
    content = tomllib.loads(explorer.scenario_toml(CELLS, STUDY))
    assert content["class"][0]["ttft_target_s"] == 60.0


def moved(**changed: object) -> tuple[str, str]:
    """What the explorer shows before and after some of its controls are moved."""
    widget = explorer.show_explorer(CELLS, STUDY)
    *controls, shown, _, _ = widget.children
    before = shown.value
    for control in controls:
        if control.description in changed:
            control.value = changed[control.description]
    return before, shown.value


@pytest.mark.parametrize(
    ("control", "value", "seen"),
    [
        ("4090, USD/h", 1.5, "1x H100 is cheapest"),
        ("P99 TTFT within", 0.1, "within 100 ms"),
        ("grid", "PL", "on the grid of PL"),
        ("model", "DeepSeek-R1-Distill-Qwen-1.5B", "1x 4090 is cheapest"),
    ],
)
def test_moving_a_control_changes_the_figure_and_the_sentence(control, value, seen):
    before, after = moved(**{control: value})
    assert seen in after
    assert seen not in before
    assert re.search(r'src="[^"]+"', before)[0] != re.search(r'src="[^"]+"', after)[0]


def test_a_scenario_is_planned_on_demand_and_a_change_clears_the_plan():
    small = explorer.scenario_of("DeepSeek-R1-Distill-Llama-8B", 4.0, "study-2025")
    *controls, _, button, planned = explorer.show_explorer(CELLS, small).children
    assert planned.value == ""
    button.click()
    assert "1x 4090: planned for served 100 %" in planned.value
    assert "[simulated; prices and powers reference]" in planned.value
    controls[0].value = MODEL
    assert planned.value == ""


def test_a_scenario_that_nothing_serves_says_so():
    tight = replace(STUDY, ttft_target_s=0.001)
    assert "served by nothing" in explorer.scenario_plan(CELLS, tight)


def test_the_file_to_save_is_in_the_page():
    _, after = moved(**{"4090, USD/h": 0.4})
    payload = re.search(r'download="scenario.toml" href="data:[^,]+,([^"]+)"', after)[1]
    assert "rtx-4090 = 0.40" in base64.b64decode(payload).decode()


@pytest.mark.notebooks
def test_the_notebook_runs_without_a_browser(tmp_path: Path):
    target = tmp_path / "explore.ipynb"
    run_notebook(root_dir() / "notebooks" / "explore.ipynb", target, {"rate_requests_per_s": 32.0})
    assert "At 32 requests/s" in json.dumps(json.loads(target.read_text()))
