"""What a chapter saves, and where."""

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from hetinfer import chapters
from hetinfer.errors import InputError
from hetinfer.figures.style import styled
from hetinfer.values import load_values, quote


@pytest.fixture
def chapter(tmp_path):
    return chapters.open_chapter("99-test", str(tmp_path))


def test_a_relative_build_folder_is_taken_from_the_clone():
    from hetinfer.paths import root_dir

    assert chapters.open_chapter("99-test", "build").build_dir == root_dir() / "build"


def test_a_table_is_saved_with_every_digit_and_as_latex(chapter):
    table = pd.DataFrame({"name_of": ["50 % & more"], "value": [1 / 3]})
    assert chapters.save_table(chapter, "t", table) is table
    saved = pd.read_csv(chapter.build_dir / "tables" / "t.csv")
    assert saved["value"].item() == 1 / 3
    latex = (chapter.build_dir / "tables" / "t.tex").read_text()
    assert r"name\_of" in latex
    assert r"50 \% \& more" in latex
    assert r"\toprule" in latex


def test_a_figure_has_the_same_bytes_twice(chapter):
    def draw():
        with styled():
            figure, axis = plt.subplots()
            axis.plot([1, 2], [3, 4])
        return figure

    folder = chapter.build_dir / "figures"
    chapters.save_figure(chapter, "f", draw())
    first = [(folder / f"f.{suffix}").read_bytes() for suffix in ("svg", "pdf")]
    chapters.save_figure(chapter, "f", draw())
    assert first == [(folder / f"f.{suffix}").read_bytes() for suffix in ("svg", "pdf")]
    assert not plt.get_fignums()


def test_a_result_comes_back_as_saved(chapter):
    table = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    chapters.save_result(chapter, "r", table)
    pd.testing.assert_frame_equal(chapters.load_result(chapter, "r"), table)


def test_a_missing_result_says_what_to_run(chapter):
    with pytest.raises(InputError, match="run make reproduce"):
        chapters.load_result(chapter, "nothing")


def test_values_are_saved_under_the_chapters_name(chapter):
    value = quote("n", 3, unit="runs", evidence="recorded", chapter=chapter.name)
    assert chapters.save_values(chapter, [value]) == {"n": "3"}
    saved = load_values(chapter.build_dir / "results" / "99-test.values.json")
    assert saved == {"n": value}
