"""Printed tables against recorded runs."""

import pandas as pd
import pytest

from hetinfer import published
from hetinfer.claims import load_study


@pytest.fixture(scope="module")
def study():
    return load_study()


@pytest.fixture(scope="module")
def cells(study) -> pd.DataFrame:
    return published.compare_cells(study.printed, study.runs)


def test_every_printed_cell_is_compared_and_agrees(cells):
    assert len(cells) == 801
    assert cells["agrees"].all()


def test_the_regenerated_tables_equal_the_printed_text(study, cells):
    regenerated = published.regenerate(cells)
    printed = study.printed
    for name in published.CELL_COLUMNS:
        mine, theirs = regenerated[name].fillna(""), printed[name]
        shown = (printed["source"] != published.PAPER) | (name != "price_usd_per_h")
        for ours, text in zip(mine[shown], theirs[shown], strict=True):
            assert ours == "" if text == "" else abs(float(ours) - float(text)) < 1e-9


def test_one_row_of_table_2_is_the_second_replicate(study):
    second = study.table_2.loc[study.table_2["replicate"] == 2, "row"].tolist()
    assert second == [17]


def test_a_changed_cell_is_found(study):
    printed = study.printed.copy()
    printed.loc[0, "ttft_p99_ms"] = "27.53"
    cells = published.compare_cells(printed, study.runs)
    assert (~cells["agrees"]).sum() == 1
    assert cells.loc[~cells["agrees"], "column"].item() == "ttft_p99_ms"


def test_seven_recorded_cells_are_in_no_table(study):
    listed = published.untabulated(study.printed, study.runs)
    assert len(listed) == 7
    assert set(listed["gpu_count"]) == {4}


def test_every_other_printed_number_is_accounted_for(study):
    other = published.compare_other(study.other, study.table_2)
    assert len(other) == len(study.other)
    assert (other["from"] != "").all()
    differing = other.loc[(~other["agrees"]).fillna(False), "printed"].tolist()
    assert differing == ["2.49", "1.99", "0.174", "3.83"]


def test_table_3_by_hand(study):
    other = published.compare_other(study.other, study.table_2).set_index(["item", "name"])
    assert other.loc[("1xh100-pcie", "tokens per kWh"), "recomputed"] == 15.4  # 10.8 / 0.7
    assert other.loc[("1xh100-pcie", "carbon intensity"), "recomputed"] == pytest.approx(242 / 15.4)


def test_a_printed_number_names_the_rows_that_round_to_it(study):
    assert published.rows_printing("3.83", "throughput_requests_per_s", study.table_2) == [19]
    assert published.rows_printing("9.99", "throughput_requests_per_s", study.table_2) == []
