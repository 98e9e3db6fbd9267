import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetinfer import explorer
from hetinfer.errors import InputError
from hetinfer.explorer import Scenario
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
    text = explorer.sentence(explorer.reprice(CELLS, STUDY), STUDY)
    assert text.startswith(
        "At 16 requests/s 2x 4090 is cheapest: 0.086 USD per million tokens, 54 %"
    )


def test_sentence_compares_nothing_where_the_h100_is_cheapest():
    scenario = Scenario(MODEL, 32.0, 0.1, 2.0)
    text = explorer.sentence(explorer.reprice(CELLS, scenario), scenario)
    assert "1x H100 is cheapest" in text
    assert "below" not in text


def test_figure_is_one_image_with_a_text_alternative():
    html = explorer.figure_html(explorer.reprice(CELLS, STUDY), STUDY)
    assert html.startswith('<img alt="Cost per million tokens')
    assert "data:image/svg+xml;base64," in html


@pytest.mark.parametrize(
    ("scenario", "what"),
    [
        (Scenario("gpt", 16.0, 2.0, 0.25), "unknown model"),
        (Scenario(MODEL, 16.0, 0.0, 0.25), "price not positive"),
        (Scenario(MODEL, 16.0, 2.0, math.nan), "price not positive"),
    ],
)
def test_a_scenario_that_makes_no_sense_is_an_error(scenario, what):
    with pytest.raises(InputError, match=what):
        explorer.reprice(CELLS, scenario)


def test_a_rate_that_was_not_run_is_an_error():
    with pytest.raises(InputError, match="one of 1, 4, 8, 16, 32"):
        explorer.at_rate(explorer.reprice(CELLS, STUDY), 2.0)


def test_moving_a_slider_changes_the_figure_and_the_sentence():
    widget = explorer.show_explorer(
        CELLS, model=MODEL, rate_requests_per_s=16.0, price_scenario="study-2025"
    )
    *_, slider, shown = widget.children
    before = shown.value
    slider.value = 1.5
    assert "1x H100 is cheapest" in shown.value
    assert before != shown.value


@pytest.mark.notebooks
def test_the_notebook_runs_without_a_browser(tmp_path: Path):
    target = tmp_path / "explore.ipynb"
    run_notebook(root_dir() / "notebooks" / "explore.ipynb", target, {"rate_requests_per_s": 32.0})
    assert "At 32 requests/s" in json.dumps(json.loads(target.read_text()))
