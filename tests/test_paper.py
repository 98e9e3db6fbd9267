"""The paper: the same bytes each time, and no number in it that someone typed."""

import json
import re
import shutil

import pytest

from hetinfer.errors import InputError
from hetinfer.paper import compile_paper
from hetinfer.paths import data_dir, root_dir

PAPER = root_dir() / "paper"
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="518pt" height="200pt"></svg>'
GENERATED = re.compile(r'#?\b(?:v|vu|id|printed|found|condition)\("[^"]*"\)')
NAMES = re.compile(r"#(?:h100|rtx|p99|model)\b")
NAMED_SOURCE = re.compile(r"@[a-z][\w-]*")
COMMENT = re.compile(r"^//.*$", re.MULTILINE)


def typed_numerals(text):
    """What is left of a text's numerals once names, citations and generated numbers are gone."""
    for allowed in (COMMENT, GENERATED, NAMES, NAMED_SOURCE):
        text = allowed.sub("", text)
    return re.findall(r"\S*\d\S*", text)


@pytest.fixture
def build_dir(tmp_path):
    build = tmp_path / "build"
    (build / "figures").mkdir(parents=True)
    for name in re.findall(r'#wide-figure\(\s*"(\w+)"', (PAPER / "main.typ").read_text()):
        (build / "figures" / f"{name}.svg").write_text(SVG)
    for name in ("values.json", "claims.csv"):
        shutil.copy(data_dir("expected") / name, build)
    return build


def test_no_numeral_of_the_text_is_typed():
    assert typed_numerals((PAPER / "main.typ").read_text()) == []


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
    text, entries = (PAPER / "main.typ").read_text(), (PAPER / "references.bib").read_text()
    known = set(re.findall(r"^@\w+\{([\w-]+),", entries, re.MULTILINE))
    placed = set(re.findall(r'id: "(\w+)"', text)) | set(re.findall(r"<(\w+)>", text))
    assert set(re.findall(r"@([\w-]+)", text)) == known | placed
