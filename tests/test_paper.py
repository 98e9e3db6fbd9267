"""The paper: the same bytes each time, and no number in it that someone typed."""

import importlib
import inspect
import json
import re
import shutil

import nbformat
import pandas as pd
import pytest

from hetinfer.errors import InputError
from hetinfer.figures.style import COLUMN_WIDTH_IN, PAGE_WIDTH_IN
from hetinfer.paper import compile_paper
from hetinfer.paths import data_dir, root_dir

PAPER = root_dir() / "paper"
TEXT = (PAPER / "main.typ").read_text()
SOURCES = pd.read_csv(PAPER / "sources.csv").to_dict("records")
A4_WIDTH_MM, MM_PER_IN = 210, 25.4
SMALLEST_PLACED_FRAC = 0.97  # a figure's smallest letters are 6 pt at its own size
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="518pt" height="200pt"></svg>'
GENERATED = re.compile(r'#?\b(?:v|vu|vi|vn|k|interval|id|printed|found|condition|side)\("[^"]*"\)')
NAMES = re.compile(r"#(?:h100|rtx|p99|model)\b")
PLACED = re.compile(r'#(?:wide|column)-figure\(\s*"\w+"')
NAMED_SOURCE = re.compile(r"@[a-z][\w-]*")
COMMENT = re.compile(r"^//.*$", re.MULTILINE)


def typed_numerals(text):
    """What is left of a text's numerals once names, citations and generated numbers are gone."""
    for allowed in (COMMENT, PLACED, GENERATED, NAMES, NAMED_SOURCE):
        text = allowed.sub("", text)
    return re.findall(r"\S*\d\S*", text)


def placed_figures():
    """The figures that the text places, by the names of their files."""
    return re.findall(r'#(?:wide|column)-figure\(\s*"(\w+)"', TEXT)


@pytest.fixture
def build_dir(tmp_path):
    build = tmp_path / "build"
    (build / "figures").mkdir(parents=True)
    for name in placed_figures():
        (build / "figures" / f"{name}.svg").write_text(SVG)
    shutil.copytree(data_dir("expected") / "tables", build / "tables")
    for name in ("values.json", "claims.csv"):
        shutil.copy(data_dir("expected") / name, build)
    return build


def test_no_numeral_of_the_text_is_typed():
    assert typed_numerals(TEXT) == []


def test_a_typed_numeral_is_found():
    assert typed_numerals('All 130 runs, #v("runs_130"), @vllm23, #h100;s.') == ["130"]
    assert typed_numerals("#v(12)") == ["#v(12)"]


def test_the_template_holds_layout_and_names_but_no_other_number_in_words():
    text = (PAPER / "template.typ").read_text()
    in_content = set(re.findall(r"\[([^\[\]\n]*\d[^\[\]\n]*)\]", COMMENT.sub("", text)))
    assert in_content == {"H100", "RTX~4090", "P99", "DeepSeek-R1-Distill-Qwen-14B"}


def test_two_builds_give_the_same_bytes(build_dir):
    first = compile_paper(build_dir).read_bytes()
    other = build_dir.parent / "elsewhere" / "build"
    shutil.copytree(build_dir, other, ignore=shutil.ignore_patterns("paper.pdf"))
    assert first == compile_paper(other).read_bytes()
    assert first.startswith(b"%PDF")


def test_a_changed_value_changes_the_paper(build_dir):
    first = compile_paper(build_dir).read_bytes()
    values = json.loads((build_dir / "values.json").read_text())
    values["runs"]["text"] = "131"
    (build_dir / "values.json").write_text(json.dumps(values))
    assert first != compile_paper(build_dir).read_bytes()


def test_a_value_that_the_text_quotes_and_the_build_lacks_is_named(build_dir):
    values = json.loads((build_dir / "values.json").read_text())
    del values["warm_runs"]
    (build_dir / "values.json").write_text(json.dumps(values))
    with pytest.raises(InputError, match="warm_runs"):
        compile_paper(build_dir)
    assert not (build_dir / "paper.pdf").exists()


@pytest.mark.parametrize("name", ["values.json", "claims.csv", "figures/warm_cache.svg"])
def test_a_build_without_what_the_paper_reads_is_an_error(build_dir, name):
    (build_dir / name).unlink()
    with pytest.raises(InputError, match="make reproduce"):
        compile_paper(build_dir)


def test_every_work_cited_is_in_the_bibliography_and_every_entry_is_cited():
    entries = (PAPER / "references.bib").read_text()
    known = set(re.findall(r"^@\w+\{([\w-]+),", entries, re.MULTILINE))
    assert set(re.findall(r"@([\w-]+)", TEXT)) == known | labels()


def labels():
    """The labels of the text's figures and tables."""
    return set(re.findall(r'id: "([\w-]+)"', TEXT)) | set(re.findall(r"<([\w-]+)>", TEXT))


def test_every_figure_and_table_has_one_source():
    assert sorted(labels() - {"sources"}) == sorted(row["label"] for row in SOURCES)


@pytest.mark.parametrize("row", SOURCES, ids=lambda row: row["label"])
def test_a_source_is_saved_by_its_chapter_with_its_function(row):
    chapter = nbformat.read(root_dir() / "notebooks" / f"{row['chapter']}.ipynb", 4)
    code = "\n".join(cell.source for cell in chapter.cells if cell.cell_type == "code")
    code = re.sub(r"\(\s+", "(", code)
    module, _, function = f"hetinfer.{row['function']}".rpartition(".")
    assert callable(getattr(importlib.import_module(module), function))
    assert f"{function}(" in code
    if row["kind"] != "file":
        assert f'save_{row["kind"]}(chapter, "{row["artefact"]}"' in code


def test_letters_of_placed_figures_are_six_points_high():
    """Drawn for a column's or the page's width, placed at it, and no label smaller than 6 pt."""
    template = (PAPER / "template.typ").read_text()
    margin, gutter = (
        float(re.search(pattern, template)[1])
        for pattern in (r"margin: \(x: ([\d.]+)mm", r"gutter: ([\d.]+)mm")
    )
    page_in = (A4_WIDTH_MM - 2 * margin) / MM_PER_IN
    column_in = (page_in - gutter / MM_PER_IN) / 2
    assert page_in / PAGE_WIDTH_IN > SMALLEST_PLACED_FRAC
    assert column_in / COLUMN_WIDTH_IN > SMALLEST_PLACED_FRAC
    for row in SOURCES:
        if row["kind"] == "figure":
            module, _, function = f"hetinfer.{row['function']}".rpartition(".")
            source = inspect.getsource(getattr(importlib.import_module(module), function))
            sizes = re.findall(r"(?:font|label)size=([\d.]+)", source)
            assert all(float(size) >= 6 for size in sizes)
