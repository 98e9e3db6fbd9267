"""Claims: the rule, and what it says of the recorded study."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetinfer import claims
from hetinfer.claims.rule import (
    Claim,
    Finding,
    bears_out,
    conditions,
    factors,
    judge,
    near,
    up_to,
)
from hetinfer.claims.simulated import sides_text
from hetinfer.errors import InputError


def make_claim(**changes: object) -> Claim:
    blank = dict.fromkeys([f.name for f in dataclasses.fields(Claim)], "")
    return Claim(**{**blank, "id": "S00", "may_vary": ("request rate",), **changes})


def make_cells(holds: list[bool], rates: list[float] | None = None) -> pd.DataFrame:
    rates = rates or [1.0, 4.0, 8.0, 16.0, 32.0][: len(holds)]
    return pd.DataFrame(
        {
            "request rate": rates,
            "cell": [f"at {rate:g}" for rate in rates],
            "value": 1.0,
            "holds": holds,
            "in_scope": True,
        }
    )


def verdict(holds: list[bool], **changes: object) -> tuple[str, str]:
    return judge(make_claim(**changes), Finding(make_cells(holds), ""))


def test_a_bound_allows_half_a_printed_unit_and_two_sigmas_of_noise():
    assert bears_out([61.5, 61.4, 78.5, 78.6], low="62", high="78").tolist() == [1, 0, 1, 0]
    assert bears_out([61.0], low="62", high="78", noise_frac=0.005).tolist() == [True]
    assert bears_out([60.5], low="62", high="78", noise_frac=0.005).tolist() == [False]


def test_a_value_that_is_no_number_bears_nothing_out():
    assert not bears_out([np.nan, np.inf]).any()


def test_near_is_rounding_to_the_printed_number():
    assert near([3.849, 3.85, 3.95, 3.951], "3.9").tolist() == [0, 1, 1, 0]


def test_up_to_needs_a_cell_that_reaches_the_bound():
    assert up_to([10, 74.8], "75").all()
    assert not up_to([10, 60], "75").any()
    assert up_to([10, 75, 90], "75").tolist() == [True, True, False]


def test_all_cells_holding_reproduce_a_statement():
    assert verdict([True, True, True]) == ("reproduced", "")


def test_no_cells_cannot_be_tested():
    assert judge(make_claim(), Finding(pd.DataFrame(), ""))[0] == "not-testable"


def test_one_cell_proves_a_statement_of_existence():
    finding = Finding(make_cells([False, True, False]), "", any_cell=True)
    assert judge(make_claim(), finding)[0] == "reproduced"


def test_the_widest_contiguous_range_is_the_condition():
    assert verdict([True, False, True, True, False]) == (
        "reproduced-under-condition",
        "at 8 to 16 requests/s (2 of 5 cells)",
    )


def test_equally_wide_conditions_are_both_said():
    _, condition = verdict([True, False, False, False, True])
    assert condition == "at 1 request/s or at 32 requests/s (1 of 5 cells)"


def test_a_condition_for_less_than_a_fifth_is_none():
    rates = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    finding = Finding(make_cells([True, False, False, False, False, False], rates), "")
    assert judge(make_claim(), finding)[0] == "not-reproduced"


def test_a_value_holds_only_if_all_its_cells_do():
    finding = Finding(make_cells([True, False, False, False], [1.0, 1.0, 4.0, 4.0]), "")
    assert judge(make_claim(), finding)[0] == "not-reproduced"


def test_words_of_the_statement_exclude_a_condition():
    assert verdict([True, True, True, True, False], must_hold_at="request rate=32") == (
        "not-reproduced",
        "1 of 5 cells contradict it: at 32",
    )


def test_a_factor_that_may_not_vary_is_no_condition():
    assert verdict([True, True, False], may_vary=())[0] == "not-reproduced"


def test_what_is_shown_beside_the_scope_is_not_judged():
    cells = make_cells([True, False]).assign(in_scope=[True, False])
    assert judge(make_claim(), Finding(cells, ""))[0] == "reproduced"


def test_explanations_are_no_part_of_a_factor():
    assert factors("request rate; cost basis (per hour or per token)") == [
        "request rate",
        "cost basis",
    ]


@given(st.lists(st.booleans(), min_size=1, max_size=5))
def test_every_condition_holds_and_covers_a_fifth(holds: list[bool]):
    cells = make_cells(holds)
    for condition in conditions(make_claim(), cells):
        inside = cells[cells["request rate"].isin(condition.levels)]
        assert inside["holds"].all()
        assert condition.cells == len(inside) >= len(cells) / 5


@given(st.lists(st.booleans(), min_size=1, max_size=5))
def test_a_verdict_is_reproduced_only_if_all_cells_hold(holds: list[bool]):
    assert (verdict(holds)[0] == "reproduced") == all(holds)


@pytest.fixture(scope="module")
def judged() -> dict[str, claims.Judgement]:
    return claims.judge_claims(claims.load_study())


def test_every_row_of_the_table_is_judged(judged):
    table = claims.claim_table(judged)
    assert list(judged) == [f"S{number:02d}" for number in range(1, 40)]
    assert list(table) == claims.COLUMNS
    assert claims.tally(table)["claims"] == 35
    assert (table["kind"] == "check").sum() == 4


def test_s01_share_of_four_cards_by_hand(judged):
    # 1994.824016673... over the mean of 3011.129742 and 2981.649697 tokens/s, 14B at 16 requests/s
    cells = judged["S01"].finding.cells.set_index("cell")["value"]
    expected = 100 * 1994.824017 / ((3011.129742 + 2981.649697) / 2)
    assert cells["DeepSeek-R1-Distill-Qwen-14B 4x 4090 at 16"] == pytest.approx(expected, rel=1e-7)
    assert judged["S01"].condition == "at 16 requests/s (3 of 15 cells)"


def test_s06_contradicting_cells_are_named(judged):
    assert judged["S06"].verdict == "not-reproduced"
    assert "at 32" in judged["S06"].condition


def test_s10_energy_ratio_by_hand(judged):
    # (3011.129742 / 700) / (1250.592607 / 900)
    cells = judged["S10"].finding.cells
    assert cells["value"].iloc[0] == pytest.approx(3011.129742 / 700 / (1250.592607 / 900))
    assert judged["S10"].verdict == "not-reproduced"


def test_s22_the_printed_point_is_the_next_row(judged):
    assert set(judged["S22"].finding.cells["rows_that_print_it"]) == {"19"}


def test_s24_and_s25_all_801_cells(judged):
    for claim_id, cells in (("S24", 180), ("S25", 621)):
        assert judged[claim_id].verdict == "reproduced"
        assert len(judged[claim_id].finding.cells) == cells


def test_no_verdict_is_stored_with_the_claims():
    names = {field.name for field in dataclasses.fields(Claim)}
    assert "verdict" not in names


def test_other_prices_change_verdicts_about_cost_alone():
    study = claims.load_study("secure-2026")
    changed = claims.judge_claims(study)
    base = claims.judge_claims(claims.load_study())
    differing = {i for i in base if base[i].finding.recomputed != changed[i].finding.recomputed}
    assert {"S02", "S03", "S04", "S12", "S13"} <= differing
    assert not differing & {"S01", "S05", "S06", "S07", "S17", "S33"}


def test_an_unknown_claim_is_named_with_the_known_ones(judged):
    with pytest.raises(InputError, match="'S99', expected one of S01"):
        claims.find_judgement(judged, "S99")


def test_a_claim_as_text_and_as_html_escapes_and_shows_its_cells(judged):
    text = claims.as_text(claims.find_judgement(judged, "s06"))
    assert "1x H100 at 32 r2" in text
    html = claims.evidence_html(judged, "S06 S07")
    assert '<section id="S06"' in html
    assert "<table" in html
    hostile = dataclasses.replace(judged["S06"].claim, statement="<script>")
    shown = {"S06": dataclasses.replace(judged["S06"], claim=hostile)}
    assert "<script>" not in claims.evidence_html(shown, "S06")
    assert "<script>" not in claims.table_html(claims.claim_table(shown))


def test_the_table_for_a_terminal_names_every_verdict(judged):
    text = claims.table_text(claims.claim_table(judged))
    assert "S39  not-testable" in text
    assert "S26  reproduced (check)" in text


def test_what_is_simulated_stands_beside_and_decides_nothing(judged):
    sides = {name: j.finding.simulated for name, j in judged.items() if j.finding.simulated}
    assert list(sides) == ["S06", "S14", "S15", "S16", "S17", "S18"]
    assert sides["S06"].startswith("P99 TTFT at 16 requests/s: ")
    assert all("with new prompts" in side for side in sides.values())
    assert {judged[name].verdict for name in ("S14", "S15", "S16")} == {"not-testable"}
    text = claims.table_text(claims.claim_table(judged))
    assert "-> simulated: four nodes whose hosts keep up" in text
    assert f"simulated:  {sides['S17']}" in claims.as_text(judged["S17"])
    assert "<dt>simulated</dt>" in claims.evidence_html(judged, "S06")


def test_simulated_sides_are_told_with_unit_and_decimals():
    table = pd.DataFrame({"id": ["S16"], "cold": [0.0875], "warm": [0.1], "unit": ["USD/Mtoken"]})
    assert sides_text(table) == {
        "S16": "those nodes at 4 requests/s each: 0.088 USD/Mtoken with new prompts, "
        "0.100 with repeated"
    }


def test_owned_cards_carry_less_embodied_carbon_in_most_cells_but_not_all(judged):
    judgement = judged["S38"]
    owned = judgement.finding.cells.query("holding == 'owned'")
    assert judgement.verdict == "reproduced"
    assert 0.8 * len(owned) < owned["holds"].sum() < len(owned)
