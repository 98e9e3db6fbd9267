"""One executed notebook as a page: code folded, saved figures as vectors, tables that scroll."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import unescape
from itertools import cycle
from pathlib import Path
from typing import Any

from hetinfer.report.templates import TEMPLATES, in_words, render

SAVED = re.compile(r"""save_(figure|table)\(\s*\w+,\s*["']([\w-]+)["']""")
FIGURE_SCALE = 1.25  # labels of 7 pt become as large as a screen's small print
COLUMN_WIDTH_PX = 480  # a figure no wider than this is read whole on a phone
PX_PER_PT = 96 / 72
NUMBER = re.compile(r"\s*[-+−]?[\d.,]+(e[-+]?\d+)?\s*%?\s*|\s*(nan|NaN|inf|)\s*")
SCROLL = '<div class="scroll" tabindex="0" role="group" aria-label="Table">'


@dataclass(frozen=True)
class ChapterPage:
    """One executed chapter as HTML: its title, its answer, its body and the anchors in it."""

    name: str
    title: str
    summary: str
    body: str
    sections: tuple[tuple[str, str], ...]
    anchors: frozenset[str]

    @property
    def number(self) -> str:
        """`01` of `01-recorded-study`."""
        return self.name.split("-", 1)[0]

    @property
    def label(self) -> str:
        """`01 recorded study`: what the bar on top of every page calls it."""
        return self.name.replace("-", " ")


@dataclass(frozen=True)
class SavedFigure:
    """A figure that a cell saves, and how large the page shows it, in CSS pixels."""

    name: str
    title: str
    width: int
    height: int
    width_class: str
    has_pdf: bool


@dataclass(frozen=True)
class SavedTable:
    """A table that a cell saves."""

    name: str
    title: str
    has_tex: bool


def load_chapter(path: Path, build_dir: Path) -> ChapterPage:
    """An executed notebook as a page; what its cells save is taken from `build_dir`."""
    import nbformat

    notebook = nbformat.reads(path.read_text(), as_version=4)
    notebook.metadata["language_info"] = {"name": "python", "pygments_lexer": "python3"}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = _outputs(cell, build_dir)
    body, _ = _exporter().from_notebook_node(notebook)
    sections = re.findall(r'<h2 id="([^"]+)">(.*?)</h2>', body, re.DOTALL)
    return ChapterPage(
        name=path.stem,
        title=_title(body, path.stem),
        summary=_summary(body),
        body=scrolling_tables(body),
        sections=tuple((anchor, _plain(text)) for anchor, text in sections),
        anchors=frozenset(re.findall(r'\bid="([^"]+)"', body)),
    )


def scrolling_tables(body: str) -> str:
    """Every table in a box that scrolls sideways; a frame's columns of numbers aligned right."""
    unstyled = re.sub(r"<style scoped[^>]*>.*?</style>", "", body, flags=re.DOTALL)
    return re.sub(
        r"<table\b.*?</table>",
        lambda table: f"{SCROLL}{_aligned(table[0])}</div>",
        unstyled,
        flags=re.DOTALL,
    )


def saved_figure(path: Path) -> SavedFigure:
    """A figure of a build by its SVG file, at the size that a page shows it."""
    head = path.read_text()[:4000]
    sizes = [re.search(rf'<svg[^>]*\b{side}="([\d.]+)pt"', head) for side in ("width", "height")]
    width, height = (round(float(s[1]) * PX_PER_PT * FIGURE_SCALE) if s else 0 for s in sizes)
    return SavedFigure(
        name=path.stem,
        title=in_words(path.stem),
        width=width,
        height=height,
        width_class="column" if width <= COLUMN_WIDTH_PX else "page",
        has_pdf=path.with_suffix(".pdf").is_file(),
    )


def _outputs(cell: Any, build_dir: Path) -> list[Any]:
    """The cell's outputs, pictures of figures that it saves replaced by the saved vectors."""
    import nbformat

    named = SAVED.findall(cell.source)
    figures = [
        saved_figure(path)
        for kind, name in named
        if kind == "figure" and (path := build_dir / "figures" / f"{name}.svg").is_file()
    ]
    tables = [
        SavedTable(name, in_words(name), path.with_suffix(".tex").is_file())
        for kind, name in named
        if kind == "table" and (path := build_dir / "tables" / f"{name}.csv").is_file()
    ]
    kept = [output for output in cell.outputs if not (figures and _is_picture(output))]
    if not figures and not tables:
        return kept
    html = render("saved.html", root="../", figures=figures, tables=tables, alt="")
    return [*kept, nbformat.v4.new_output("display_data", data={"text/html": html})]


def _is_picture(output: Any) -> bool:
    data = output.get("data", {})
    return "image/png" in data or str(data.get("text/plain", "")).startswith("<Figure")


def _title(body: str, fallback: str) -> str:
    heading = re.search(r"<h1[^>]*>(.*?)</h1>", body, re.DOTALL)
    return _plain(heading[1]) if heading else in_words(fallback)


def _summary(body: str) -> str:
    """The chapter's answer, else its first paragraph, as plain text."""
    answer = re.search(r'<div class="output answer">(.*?)</div>', body, re.DOTALL)
    first = re.search(r"<p>(.*?)</p>", answer[1] if answer else body, re.DOTALL)
    return _plain(first[1]).removeprefix("Answer. ") if first else ""


def _plain(html: str) -> str:
    return unescape(re.sub(r"<[^>]+>", "", html)).strip()


def _aligned(table: str) -> str:
    head, _, body = table.replace(' style="text-align: right;"', "").partition("</thead>")
    rows = [re.findall(r"<td>(.*?)</td>", row, re.DOTALL) for row in body.split("</tr>")]
    cells = [row for row in rows if row]
    if 'class="dataframe"' not in head or len({len(row) for row in cells}) != 1:
        return table
    numeric = [
        all(NUMBER.fullmatch(cell) for cell in column) for column in zip(*cells, strict=True)
    ]
    index = [False] * (head.count("<th>") - len(numeric))
    marked = (_marked(head, "th", [*index, *numeric]), _marked(body, "td", numeric))
    return "</thead>".join(marked)


def _marked(html: str, tag: str, numeric: Sequence[bool]) -> str:
    turns = cycle(numeric)
    return re.sub(f"<{tag}>", lambda m: f'<{tag} class="number">' if next(turns) else m[0], html)


@cache
def _exporter() -> Any:
    from nbconvert.exporters import HTMLExporter
    from traitlets.config import Config

    shown = ["text/html", "text/markdown", "image/svg+xml", "image/png", "image/jpeg", "text/plain"]
    return HTMLExporter(
        config=Config({"NbConvertBase": {"display_data_priority": shown}}),
        extra_template_basedirs=[str(TEMPLATES)],
        template_name="cells",
        exclude_anchor_links=True,
    )
