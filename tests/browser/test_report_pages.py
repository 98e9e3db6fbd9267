"""The finished report in a browser: wide and narrow, claim to evidence, accessible, offline."""

import re
from pathlib import Path

import pytest

from hetinfer.paths import root_dir

REPORT = root_dir() / "build" / "report"
PAGES = sorted(path.relative_to(REPORT).as_posix() for path in REPORT.rglob("*.html"))
SERIOUS = ("serious", "critical")
# thousands of cells of evidence look alike; a few opened ones are checked
OPEN_SOME = "[...document.querySelectorAll('details')].slice(0, 6).forEach(d => { d.open = true })"


def url(page: str) -> str:
    return (REPORT / page).as_uri()


def test_there_is_a_report_to_look_at():
    assert "index.html" in PAGES, "run make reproduce first"
    assert len(PAGES) >= 2


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", PAGES)
def test_no_page_scrolls_sideways(open_page, name, width):
    page = open_page(url(name), width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [1280, 390])
def test_a_claim_leads_to_its_evidence_and_the_rows_of_data_in_two_clicks(open_page, width):
    page = open_page(url("index.html"), width)
    page.get_by_role("link", name="S06", exact=True).click()
    section = page.locator("section#S06")
    assert page.url.endswith("#S06")
    box = section.bounding_box()
    assert 0 <= box["y"] < 900
    assert not section.get_by_role("table").is_visible()
    section.locator("summary").click()
    assert section.get_by_role("table").is_visible()


@pytest.mark.parametrize("name", PAGES)
def test_every_image_loads_and_nothing_is_asked_of_a_network(open_page, name):
    page = open_page("about:blank")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(url(name))
    assert [address for address in asked if not address.startswith(("file:", "data:"))] == []
    widths = page.eval_on_selector_all("img", "images => images.map(i => i.naturalWidth)")
    assert all(widths)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_has_no_serious_finding(open_page, axe_source, name, scheme):
    page = open_page(url(name), scheme=scheme)
    page.evaluate(OPEN_SOME)
    page.evaluate(axe_source)
    found = page.evaluate("axe.run()")["violations"]
    serious = [
        f"{rule['id']}: {rule['nodes'][0]['html']}" for rule in found if rule["impact"] in SERIOUS
    ]
    assert serious == []


@pytest.mark.parametrize("width", [1280, 390])
def test_the_overview_opens_with_the_answer_which_opens_large(open_page, width):
    page = open_page(url("index.html"), width)
    answer = page.get_by_alt_text(re.compile("verdicts on 35 claims"))
    assert answer.bounding_box()["y"] < page.locator("#claims").bounding_box()["y"]
    page.get_by_role("link", name="Answer, large").click()
    assert page.url.endswith("figures/answer.svg")


def test_code_is_folded_until_it_is_asked_for(open_page):
    page = open_page(url(next(name for name in PAGES if "01-" in name)))
    code = page.locator("details.code").first
    assert not code.locator("pre").is_visible()
    code.locator("summary").click()
    assert code.locator("pre").is_visible()


def test_the_report_prints(open_page, tmp_path: Path):
    page = open_page(url("index.html"))
    page.emulate_media(media="print")
    assert not page.locator("header.bar").is_visible()
    page.pdf(path=tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").stat().st_size > 10_000
