import re
import shutil
from pathlib import Path

import nbformat
import pandas as pd
import pytest

from hetinfer import claims, values
from hetinfer.errors import InputError
from hetinfer.report import build_report
from hetinfer.report.chapter_page import load_chapter, scrolling_tables
from hetinfer.report.templates import in_words

HOSTILE = '<script>alert("x")</script> & "quotes"'
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="252pt" height="144pt"></svg>'


def code(source, *data):
    outputs = [nbformat.v4.new_output("display_data", data=each) for each in data]
    return nbformat.v4.new_code_cell(source, outputs=outputs)


def save_notebook(path, *cells):
    for position, cell in enumerate(cells):
        cell["id"] = f"c{position}"
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=list(cells)), path)


@pytest.fixture(scope="module")
def two():
    judged = claims.judge_claims(claims.load_study())
    return {name: judged[name] for name in ("S06", "S27")}


@pytest.fixture
def build_dir(tmp_path, two):
    table = claims.claim_table(two)
    table.loc[0, "statement"] = HOSTILE
    table.to_csv(tmp_path / "claims.csv", index=False)
    number = values.quote("runs", 130, unit="runs", evidence="recorded", chapter="01-recorded")
    values.save_values([number], tmp_path / "values.json")
    for folder, name, text in (
        ("figures", "drain.svg", SVG),
        ("figures", "drain.pdf", "%PDF"),
        ("tables", "cells.csv", "a,b\n1,2\n3,4\n"),
        ("tables", "cells.tex", "x"),
    ):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text(text)
    save_notebook(
        tmp_path / "notebooks" / "01-recorded.ipynb",
        nbformat.v4.new_markdown_cell("# What do the runs say?\n\nIt matters."),
        code("place_answer()", {"text/markdown": "**Answer.** They say 130."}),
        code('save_table(chapter, "cells", t)', {"text/html": frame_html()}),
        code('save_figure(chapter, "drain", f)', {"image/png": "aGk=", "text/plain": "<Figure>"}),
        code(f"print({HOSTILE!r})", {"text/plain": HOSTILE}),
    )
    save_notebook(
        tmp_path / "notebooks" / "09-claims.ipynb",
        nbformat.v4.new_markdown_cell("# Which claims hold?"),
        code("HTML(...)", {"text/html": claims.evidence_html(two, " ".join(two))}),
    )
    return tmp_path


def frame_html():
    return pd.DataFrame({"model": ["a", "b"], "cells": [1, 2.5]})._repr_html_()


def pages(build_dir):
    build_report(build_dir)
    return {path: path.read_text() for path in (build_dir / "report").rglob("*.html")}


def test_overview_and_one_page_a_chapter_are_written(build_dir):
    found = {path.name for path in pages(build_dir)}
    assert found == {"index.html", "01-recorded.html", "09-claims.html"}


def test_overview_opens_with_the_answer_and_says_it_to_those_who_cannot_see_it(build_dir):
    (build_dir / "figures" / "answer.svg").write_text(SVG)
    text = build_report(build_dir).read_text()
    assert text.index('src="figures/answer.svg"') < text.index('class="tally"')
    assert text.index('src="figures/answer.svg"') < text.index('id="claims"')
    assert "verdicts on 1 claims: 0 reproduced, 0 reproduced-under-condition, 1 not-" in text


def test_a_build_without_the_answer_has_an_overview_without_figure(build_dir):
    assert "<img" not in build_report(build_dir).read_text()


def test_overview_stays_under_two_megabytes(build_dir):
    assert build_report(build_dir).stat().st_size < 2e6


def test_nothing_is_loaded_from_a_network(build_dir):
    for text in pages(build_dir).values():
        assert "<script" not in text
        assert not re.findall(r"""<(?:link|img|script|iframe)[^>]*(?:src|href)=["']https?:""", text)
    style = (build_dir / "report" / "report.css").read_text()
    assert "@import" not in style
    assert "url(" not in style


def test_every_link_leads_to_a_file_and_an_anchor_that_exist(build_dir):
    found = pages(build_dir)
    for page, text in found.items():
        for target in re.findall(r'(?:href|src)="([^"]+)"', text):
            name, _, anchor = target.partition("#")
            path = (page.parent / name).resolve() if name else page
            assert path.is_file(), f"{page.name}: {target}"
            assert not anchor or f'id="{anchor}"' in found[path], f"{page.name}: {target}"


def test_a_claim_links_to_the_section_with_its_evidence(build_dir):
    text = build_report(build_dir).read_text()
    assert 'href="chapters/09-claims.html#S06"' in text


def test_a_claim_whose_evidence_no_chapter_shows_has_no_link(build_dir):
    (build_dir / "notebooks" / "09-claims.ipynb").unlink()
    assert "#S06" not in build_report(build_dir).read_text()


def test_tally_counts_claims_and_leaves_checks_out(build_dir):
    text = build_report(build_dir).read_text()
    assert "Verdicts on 1 claims" in text
    assert '<li class="not-reproduced"><strong>1</strong>' in text


def test_text_of_a_claim_cannot_become_markup(build_dir):
    text = build_report(build_dir).read_text()
    assert HOSTILE not in text
    assert "&lt;script&gt;alert(" in text


def test_printed_output_cannot_become_markup(build_dir):
    text = load_chapter(build_dir / "notebooks" / "01-recorded.ipynb", build_dir).body
    assert "<script" not in text


def test_the_card_of_a_chapter_shows_its_answer(build_dir):
    page = load_chapter(build_dir / "notebooks" / "01-recorded.ipynb", build_dir)
    assert page.title == "What do the runs say?"
    assert page.summary == "They say 130."


def test_a_saved_figure_replaces_its_picture_at_a_fixed_size(build_dir):
    body = load_chapter(build_dir / "notebooks" / "01-recorded.ipynb", build_dir).body
    assert "data:image/png" not in body
    assert 'src="../figures/drain.svg" width="420"' in re.sub(r' alt="[^"]*"', "", body)


def test_a_saved_table_offers_its_files(build_dir):
    body = load_chapter(build_dir / "notebooks" / "01-recorded.ipynb", build_dir).body
    assert 'href="../tables/cells.csv"' in body
    assert 'href="../tables/cells.tex"' in body


def test_a_picture_that_no_file_holds_stays_in_the_page(build_dir):
    (build_dir / "figures" / "drain.svg").unlink()
    body = load_chapter(build_dir / "notebooks" / "01-recorded.ipynb", build_dir).body
    assert "data:image/png;base64,aGk=" in body


def test_columns_of_numbers_are_aligned_right_and_text_is_not():
    html = scrolling_tables(frame_html())
    assert '<th class="number">cells</th>' in html
    assert '<td class="number">2.5</td>' in html
    assert "<td>a</td>" in html
    assert "<style" not in html


def test_code_is_folded_and_cells_keep_their_anchors(build_dir):
    body = load_chapter(build_dir / "notebooks" / "01-recorded.ipynb", build_dir).body
    assert body.count("<summary>Show code</summary>") == 4
    assert 'id="cell-c1"' in body


def test_equal_builds_give_equal_bytes(build_dir, tmp_path_factory):
    first = {p.name: text for p, text in pages(build_dir).items()}
    other = tmp_path_factory.mktemp("other") / "build"
    shutil.copytree(build_dir, other, ignore=shutil.ignore_patterns("report"))
    assert first == {p.name: text for p, text in pages(other).items()}


def test_a_page_that_the_build_no_longer_has_is_removed(build_dir):
    build_report(build_dir)
    (build_dir / "notebooks" / "01-recorded.ipynb").unlink()
    assert {path.name for path in pages(build_dir)} == {"index.html", "09-claims.html"}


def test_paper_is_offered_once_it_is_there(build_dir):
    assert "paper.pdf" not in build_report(build_dir).read_text()
    (build_dir / "paper.pdf").write_bytes(b"%PDF")
    assert 'href="paper.pdf"' in build_report(build_dir).read_text()
    assert (build_dir / "report" / "paper.pdf").is_file()


def test_a_failed_chapter_is_no_page(build_dir):
    notebooks = build_dir / "notebooks"
    shutil.copy(notebooks / "01-recorded.ipynb", notebooks / "02-cost.failed.ipynb")
    assert not any("02-cost" in path.name for path in pages(build_dir))


@pytest.mark.parametrize("missing", ["claims.csv", "values.json", "notebooks"])
def test_an_unfinished_build_is_an_error_and_writes_nothing(build_dir, missing):
    path = build_dir / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(InputError, match="make reproduce"):
        build_report(build_dir)
    assert not (build_dir / "report").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [("01-recorded-study", "Recorded study"), ("ttft_p99", "TTFT p99"), ("goodput", "Goodput")],
)
def test_names_of_files_read_as_words(name, words):
    assert words == in_words(name)


def test_templates_travel_with_the_package():
    folder = Path(claims.__file__).parents[1] / "report" / "templates"
    assert {"page.html", "overview.html", "chapter.html", "saved.html", "report.css"} <= {
        path.name for path in folder.iterdir()
    }
