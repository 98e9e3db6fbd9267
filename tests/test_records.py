import math

import numpy as np
import pytest

from hetinfer.errors import InputError
from hetinfer.records import Record, entries, floats, has, load_records, number, text, whole


def record(path="f.json", **fields):
    return Record(fields, path, str(path))


def test_null_counts_as_not_there():
    assert not has(record(a=None), "a")
    assert has(record(a=0), "a")


def test_the_first_field_that_is_there_is_taken():
    assert 2.0 == number(record(a=None, b=2, c=3), "a", "b", "c")
    assert math.isnan(number(record(), "a"))
    assert 1.0 == number(record(), "a", otherwise=1.0)


@pytest.mark.parametrize(("value", "expected"), [("16", 16.0), ("inf", math.inf), (3, 3.0)])
def test_numbers_may_stand_as_text(value, expected):
    assert expected == number(record(a=value), "a")


@pytest.mark.parametrize("value", ["fast", True, [1], {}, 10**400])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(InputError, match=r"a: got .*, expected a number, in f\.json"):
        number(record(a=value), "a")


@pytest.mark.parametrize("value", [2.5, "nan", "inf", None])
def test_what_is_not_whole_is_refused(value):
    with pytest.raises(InputError):
        whole(record(a=value), "a")


def test_whole_numbers_may_be_written_with_a_point():
    assert 200 == whole(record(a=200.0), "a") == whole(record(a="200"), "a")


def test_text_is_one_line():
    assert "4" == text(record(a=4), "a")
    assert "" == text(record(), "a")
    with pytest.raises(InputError, match="one line of text"):
        text(record(a="\ud800"), "a")


def test_lists_have_the_length_asked_for():
    assert [1, 2] == entries(record(a=[1, 2]), "a", 2)
    assert [None, None] == entries(record(), "a", 2)
    with pytest.raises(InputError, match="got 2 entries"):
        entries(record(a=[1, 2]), "a", 3)


def test_a_list_of_numbers_that_is_not_there_is_unknown():
    np.testing.assert_array_equal([np.nan, np.nan], floats(record(), "a", 2))


@pytest.mark.parametrize("value", [[-1.0], [math.nan], [math.inf], [[1.0]], [None], ["x"]])
def test_a_list_of_anything_but_numbers_from_0_up_is_refused(value):
    with pytest.raises(InputError):
        floats(record(a=value), "a", 1)


def test_records_after_a_bad_one_are_not_reached(tmp_path):
    path = tmp_path / "f.jsonl"
    path.write_text('{"a": 1}\n{"a": \n{"a": 3}')
    read = load_records(path)
    assert 1.0 == number(next(read), "a")
    with pytest.raises(InputError, match="line 3"):
        next(read)
