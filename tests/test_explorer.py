import base64
import json
import math
import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hetinfer import explorer
from hetinfer.errors import InputError
from hetinfer.explorer import Scenario
from hetinfer.explorer.fleet_display import fleet_html
from hetinfer.fleet.demand_file import load_demand
from hetinfer.fleet.display import plan_text
from hetinfer.fleet.scenarios import CLASSES
from hetinfer.footprint.power import POWER_ASSUMPTIONS
from hetinfer.notebooks import run_notebook
from hetinfer.paths import root_dir
from hetinfer.simulation.fitted import load_calibrations

MODEL = "DeepSeek-R1-Distill-Qwen-14B"
CELLS = explorer.load_cells()
STUDY = explorer.scenario_of(MODEL, 16.0, "study-2025")
SMALL = explorer.scenario_of("DeepSeek-R1-Distill-Llama-8B", 4.0, "study-2025", ttft_target_s=0.5)
MIXED = replace(SMALL, mix={"chat": 5, "development": 1, "batch": 4})
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
    (chat,) = content["class"]
    assert (chat["name"], chat["ttft_target_s"], chat["requests_per_s"]) == ("chat", 0.5, 16.0)
    kinds = {(row["gpu"], row["gpus"]): row for row in content["configuration"]}
    assert set(kinds) == {("h100-pcie", 1), ("rtx-4090", 2), ("rtx-4090", 4), ("rtx-4090", 8)}
    assert kinds["rtx-4090", 2]["available_frac"] == 0.8
    assert "available_frac" not in kinds["h100-pcie", 1]


def test_a_scenario_without_target_is_exported_with_a_minute_and_no_gap():
    (chat,) = tomllib.loads(explorer.scenario_toml(CELLS, STUDY))["class"]
    assert chat["ttft_target_s"] == 60.0
    assert "tpot_target_s" not in chat


def test_the_mix_is_exported_as_rates_by_class():
    mixed = replace(
        STUDY, ttft_target_s=0.2, mix={"chat": 6, "agents": 1, "batch": 3, "embeddings": 0}
    )
    chat, agents, batch = tomllib.loads(explorer.scenario_toml(CELLS, mixed))["class"]
    assert [9.6, 1.6, 4.8] == [row["requests_per_s"] for row in (chat, agents, batch)]
    assert [0.2, 0.32, 60.0] == [row["ttft_target_s"] for row in (chat, agents, batch)]
    assert 1500 == agents["prompt_tokens"] != chat["prompt_tokens"] == batch["prompt_tokens"]


@given(st.dictionaries(st.sampled_from(list(CLASSES)), st.floats(0, 100), min_size=1))
def test_shares_add_up_whatever_the_parts_do(mix):
    assume(sum(mix.values()) > 1e-300)
    shares = explorer.traffic_shares(mix)
    assert math.isclose(1, sum(shares.values()))
    assert set(shares) == {name for name, part in mix.items() if part}


@pytest.mark.parametrize(
    "mix", [{}, {"chat": 0.0}, {"chat": -1, "batch": 2}, {"games": 1}, {"chat": math.nan}]
)
def test_a_mix_without_traffic_is_an_error(mix):
    with pytest.raises(InputError, match="mix of traffic"):
        explorer.scenario_toml(CELLS, replace(STUDY, mix=mix))


def test_the_saved_file_gives_the_plan_that_is_shown(tmp_path):
    path = tmp_path / "scenario.toml"
    path.write_text(explorer.scenario_toml(CELLS, MIXED))
    text = plan_text(load_demand(path, load_calibrations()[0]), 0, checked=False)
    best = explorer.scenario_fleets(CELLS, MIXED)["any"]
    assert text.splitlines()[0].endswith(f": {best.fleet}")
    assert ["chat", "development", "batch"] == [service.name for service in best.demand.classes]


def test_a_mixed_fleet_is_never_dearer_than_one_kind_of_card():
    fleets = explorer.scenario_fleets(CELLS, MIXED)
    table = explorer.cost_table(fleets)
    assert ["cheapest", "H100s alone", "4090s alone"] == table["label"].tolist()
    assert (table["usd_per_h"].iloc[0] <= table["usd_per_h"]).all()
    assert set(fleets) == {"any", "enterprise", "consumer"}


def test_a_fleet_serves_what_the_mix_asks_for():
    served = explorer.served_table(explorer.scenario_fleets(CELLS, MIXED)["any"])
    rates = served.groupby("class", sort=False)["requests_per_s"].sum()
    assert rates.to_dict() == pytest.approx({"chat": 2.0, "development": 0.4, "batch": 1.6})


def test_cards_that_are_there_half_of_the_time_cost_twice():
    busy = replace(MIXED, rate_requests_per_s=32.0)
    always, half = (
        explorer.scenario_fleets(CELLS, replace(busy, available_frac=frac))["consumer"]
        for frac in (1.0, 0.5)
    )
    (many,), (few,) = half.copies, always.copies
    assert 1 < few[1]
    assert 2 * few[1] - 1 <= many[1] <= 2 * few[1]


def test_a_tier_that_keeps_no_target_has_no_cost():
    fleets = explorer.scenario_fleets(CELLS, replace(MIXED, ttft_target_s=0.125))
    assert "consumer" not in fleets
    assert ["none"] == [
        row.fleet or "none"
        for row in explorer.cost_table(fleets).itertuples()
        if row.label == "4090s alone"
    ]


def walk(widget: Any) -> Iterator[Any]:
    """A widget and all that it holds."""
    yield widget
    for child in getattr(widget, "children", ()):
        yield from walk(child)


def control(widget: Any, description: str) -> Any:
    return next(part for part in walk(widget) if getattr(part, "description", "") == description)


def moved(start: Scenario = STUDY, **changed: object) -> tuple[list[str], list[str]]:
    """What is shown of the runs and of the fleet, before and after controls are moved."""
    widget = explorer.show_explorer(CELLS, start)
    _, shown, planned, _, _ = widget.children
    before = [shown.value, planned.value]
    for name, value in changed.items():
        control(widget, name).value = value
    return before, [shown.value, planned.value]


@pytest.mark.parametrize(
    ("name", "value", "seen"),
    [
        ("4090, USD/h", 1.5, "1x H100 is cheapest"),
        ("P99 TTFT within", 0.1, "within 100 ms"),
        ("grid", "PL", "on the grid of PL"),
        ("model", "DeepSeek-R1-Distill-Qwen-1.5B", "1x 4090 is cheapest"),
    ],
)
def test_moving_a_control_changes_the_figure_and_the_sentence(name, value, seen):
    (before, _), (after, _) = moved(**{name: value})
    assert seen in after
    assert seen not in before
    assert re.search(r'src="[^"]+"', before)[0] != re.search(r'src="[^"]+"', after)[0]


@pytest.mark.parametrize(
    ("name", "value", "seen"),
    [
        ("chat", 0, "4 requests/s, 20 % development, 80 % batch"),
        ("embeddings", 100, "25 % chat, 5 % development, 20 % batch, 50 % embeddings"),
        ("4090s there (plan)", 0.5, "50 % chat, 10 % development, 40 % batch"),
    ],
)
def test_the_fleet_follows_the_mix_and_availability_and_the_runs_do_not(name, value, seen):
    (runs, before), (same_runs, after) = moved(MIXED, **{name: value})
    assert runs == same_runs
    assert seen in after
    assert re.search(r'src="[^"]+"', before)[0] != re.search(r'src="[^"]+"', after)[0]
    links = [re.search(r'href="[^"]+"', html)[0] for html in (before, after)]
    assert links[0] != links[1]


def test_a_mix_of_nothing_says_so_and_traffic_brings_the_fleet_back():
    widget = explorer.show_explorer(CELLS, replace(MIXED, mix={"chat": 1}))
    planned = widget.children[2]
    control(widget, "chat").value = 0
    assert "mix of traffic" in planned.value
    control(widget, "batch").value = 50
    assert "100 % batch" in planned.value


def test_a_fleet_is_checked_on_demand_and_a_change_clears_the_check():
    small = replace(MIXED, rate_requests_per_s=1.0, mix={"chat": 1})
    widget = explorer.show_explorer(CELLS, small)
    *_, button, checked = widget.children
    assert checked.value == ""
    button.click()
    assert "checked by simulation under slo-aware" in checked.value
    control(widget, "batch").value = 50
    assert checked.value == ""


def test_a_scenario_that_nothing_serves_says_so_and_keeps_its_file():
    html = fleet_html(CELLS, replace(STUDY, ttft_target_s=0.001))
    assert "class chat is served by nothing" in html
    assert "scenario.toml" in html
    assert "served by nothing" in explorer.checked_text(CELLS, replace(STUDY, ttft_target_s=0.001))


def test_the_file_to_save_is_in_the_page():
    _, (_, after) = moved(MIXED, **{"4090, USD/h": 0.4, "batch": 0})
    payload = re.search(r'download="scenario.toml" href="data:[^,]+,([^"]+)"', after)[1]
    content = tomllib.loads(base64.b64decode(payload).decode())
    assert 0.4 == content["usd_per_gpu_h"]["rtx-4090"]
    assert ["chat", "development"] == [row["name"] for row in content["class"]]


@pytest.mark.notebooks
def test_the_notebook_runs_without_a_browser(tmp_path: Path):
    target = tmp_path / "explore.ipynb"
    run_notebook(root_dir() / "notebooks" / "explore.ipynb", target, {"rate_requests_per_s": 32.0})
    text = json.dumps(json.loads(target.read_text()))
    assert "At 32 requests/s" in text
    assert "H100s alone" in text
