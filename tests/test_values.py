import json
import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetinfer.errors import InputError
from hetinfer.values import (
    agrees_as_printed,
    decimals_for,
    interval_text,
    load_values,
    merge_values,
    number_text,
    printed_decimals,
    printed_half_unit,
    quote,
    rounded,
    save_values,
)

FINITE = st.floats(allow_nan=False, allow_infinity=False)
MODERATE = st.floats(-1e9, 1e9)
DECIMALS = st.integers(0, 12)


def value(name="x", number=1.25, **changes):
    stated = {"unit": "s", "evidence": "recorded", "chapter": "01", "decimals": 2} | changes
    return quote(name, number, **stated)


@pytest.mark.parametrize(
    ("number", "decimals", "text"),
    [
        (0.25, 1, "0.2"),  # a tie goes to the even digit
        (0.35, 1, "0.4"),
        (2.675, 2, "2.68"),  # though its binary fraction lies below
        (1234567.891, 1, "1,234,567.9"),
        (999.96, 1, "1,000.0"),
        (-0.004, 2, "0.00"),
        (-1.5, 0, "-2"),
        (1250.0, -2, "1,200"),
        (5e-324, 3, "0.000"),
    ],
)
def test_rounding_works_on_the_digits_that_a_reader_sees(number, decimals, text):
    assert text == rounded(number, decimals)


@given(MODERATE, DECIMALS)
def test_rounding_moves_a_number_by_half_a_unit_at_most(number, decimals):
    text = rounded(number, decimals).replace(",", "")
    exact = Decimal(repr(number))
    assert abs(Decimal(text) - exact) <= Decimal(5).scaleb(-decimals - 1)


@given(MODERATE, DECIMALS)
def test_rounding_twice_changes_nothing(number, decimals):
    once = rounded(number, decimals)
    assert once == rounded(float(once.replace(",", "")), decimals)


@given(MODERATE, MODERATE, DECIMALS)
def test_rounding_keeps_order(one, other, decimals):
    low, high = sorted([one, other])
    as_number = [Decimal(rounded(it, decimals).replace(",", "")) for it in (low, high)]
    assert as_number == sorted(as_number)


@given(MODERATE, DECIMALS)
def test_rounding_is_symmetric_about_zero(number, decimals):
    assert rounded(-number, decimals).removeprefix("-") == rounded(number, decimals).removeprefix(
        "-"
    )


@given(MODERATE, DECIMALS)
def test_a_number_agrees_with_its_own_print(number, decimals):
    assert agrees_as_printed(number, rounded(number, decimals).replace(",", ""))


@given(FINITE)
def test_any_finite_number_can_be_rounded(number):
    assert rounded(number, 2)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_has_no_text(number):
    with pytest.raises(InputError, match="finite"):
        number_text(number, decimals=1)


def test_an_exact_number_is_printed_in_full():
    assert "1,234,567" == number_text(1234567)


def test_a_count_of_numpy_is_exact_too():
    assert "1,234" == number_text(np.int64(1234))


def test_an_exact_number_is_never_rounded():
    with pytest.raises(InputError, match="no rounding of an exact number"):
        number_text(3, decimals=1)


def test_an_estimate_is_rounded_by_its_interval():
    assert "0.374" == number_text(0.37412, low=0.351, high=0.398)


def test_stated_decimals_go_before_the_interval():
    assert "0.4" == number_text(0.37412, low=0.351, high=0.398, decimals=1)


@pytest.mark.parametrize("bounds", [{}, {"low": 0.5, "high": 0.5}])
def test_an_estimate_without_a_precision_is_refused(bounds):
    with pytest.raises(InputError, match="decimals that state its precision"):
        number_text(0.5, **bounds)


@pytest.mark.parametrize(
    ("half_width", "decimals"),
    [(0.0, 0), (0.023, 3), (0.1, 2), (0.99, 2), (1.0, 1), (12.0, 0), (4567.0, 0), (1e-7, 8)],
)
def test_two_digits_of_an_uncertainty_count(half_width, decimals):
    assert decimals == decimals_for(half_width)


@pytest.mark.parametrize("half_width", [-0.1, math.nan, math.inf])
def test_an_uncertainty_that_is_none_is_refused(half_width):
    with pytest.raises(InputError, match="half width"):
        decimals_for(half_width)


def test_both_ends_of_an_interval_are_rounded_alike():
    assert "0.351 to 0.398" == interval_text(0.35149, 0.39751)
    assert "0.4 to 0.4" == interval_text(0.351, 0.398, decimals=1)


@pytest.mark.parametrize(
    ("printed", "decimals", "half"), [("0.111", 3, 0.0005), ("62", 0, 0.5), ("1.0", 1, 0.05)]
)
def test_half_a_unit_of_the_last_printed_place(printed, decimals, half):
    assert decimals == printed_decimals(printed)
    assert half == printed_half_unit(printed)


@pytest.mark.parametrize("printed", ["", "n/a", "1,234", "NaN", "inf"])
def test_a_print_that_is_no_number_is_refused(printed):
    with pytest.raises(InputError, match="printed number"):
        printed_half_unit(printed)


def test_a_tie_agrees_with_both_neighbours():
    assert agrees_as_printed(0.25, "0.2")
    assert agrees_as_printed(0.25, "0.3")
    assert not agrees_as_printed(0.2501, "0.2")


def test_a_quoted_number_carries_its_text_and_evidence():
    quoted = value(low=1.2, high=1.3, decimals=None)
    assert ("1.250", "recorded", 1.2, 1.3) == (
        quoted.text,
        quoted.evidence,
        quoted.low,
        quoted.high,
    )


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"evidence": "hearsay"}, "one of printed, recorded"),
        ({"low": 1.0}, "both ends of an interval"),
        ({"low": 1.3, "high": 1.4}, "a value between 1.3 and 1.4"),
        ({"number": math.nan}, "a finite number"),
    ],
)
def test_a_number_that_cannot_be_quoted_is_refused(changes, what):
    with pytest.raises(InputError, match=what):
        value(**changes)


def test_saved_values_come_back(tmp_path):
    quoted = [value("b", np.float64(2.5)), value("a", np.int64(7), decimals=None)]
    save_values(quoted, tmp_path / "v.json")
    assert {"a": quoted[1], "b": quoted[0]} == load_values(tmp_path / "v.json")


def test_values_are_saved_by_name_whatever_their_order(tmp_path):
    save_values([value("b"), value("a")], tmp_path / "1.json")
    save_values([value("a"), value("b")], tmp_path / "2.json")
    assert (tmp_path / "1.json").read_bytes() == (tmp_path / "2.json").read_bytes()
    assert ["a", "b"] == list(json.loads((tmp_path / "1.json").read_text()))


def test_a_name_twice_is_refused(tmp_path):
    with pytest.raises(InputError, match="the name twice"):
        save_values([value("a"), value("a")], tmp_path / "v.json")
    assert not (tmp_path / "v.json").exists()


def test_chapters_are_merged_and_counted(tmp_path):
    save_values([value("a")], tmp_path / "1.json")
    save_values([value("b"), value("c")], tmp_path / "2.json")
    assert 3 == merge_values([tmp_path / "1.json", tmp_path / "2.json"], tmp_path / "all.json")
    assert {"a", "b", "c"} == set(load_values(tmp_path / "all.json"))


def test_a_name_in_two_chapters_is_refused(tmp_path):
    save_values([value("a")], tmp_path / "1.json")
    save_values([value("a")], tmp_path / "2.json")
    with pytest.raises(InputError, match="the name twice"):
        merge_values([tmp_path / "1.json", tmp_path / "2.json"], tmp_path / "all.json")


def test_values_that_no_chapter_wrote_are_an_error(tmp_path):
    with pytest.raises(InputError, match="no values"):
        load_values(tmp_path / "v.json")
