"""The HTML report: claims first, then the chapters and data, in a folder that works offline."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from hetinfer import claims, values
from hetinfer.errors import InputError
from hetinfer.paths import write_atomically
from hetinfer.report.chapter_page import ChapterPage, SavedFigure, load_chapter, saved_figure
from hetinfer.report.templates import TEMPLATES, in_words, render
from hetinfer.values import Value

VERDICTS: Mapping[str, str] = {
    "reproduced": "every cell it speaks of bears it out",
    "reproduced-under-condition": "one range of one factor bears it out",
    "not-reproduced": "cells contradict it",
    "not-testable": "no run speaks to it",
}
CLAIMS_CHAPTER = "09-claims"
ANSWER = "answer.svg"  # the figure that the overview opens with, where the build has it
UNFINISHED = (".partial.ipynb", ".failed.ipynb")  # what a run that did not end leaves behind


@dataclass(frozen=True)
class Download:
    """One table or figure: its name in words, its files relative to the overview, its rows."""

    title: str
    files: tuple[str, ...]
    rows: int = 0


def build_report(build_dir: Path) -> Path:
    """Write `build_dir`/report from a finished build and return its `index.html`.

    Equal builds give equal bytes; pages of an earlier build that this one lacks are removed.
    Raises InputError where the build has no claims, no values or no executed chapter.
    """
    table = load_claim_table(build_dir / "claims.csv")
    quoted = values.load_values(build_dir / "values.json")
    chapters = load_chapters(build_dir)
    files = {
        Path("report.css"): (TEMPLATES / "report.css").read_bytes(),
        **dict(_copies(build_dir)),
        **{
            Path("chapters") / f"{chapter.name}.html": chapter_html(chapters, position).encode()
            for position, chapter in enumerate(chapters)
        },
    }
    answer = build_dir / "figures" / ANSWER
    figures = [saved_figure(answer)] if answer.is_file() else []
    files[Path("index.html")] = overview_html(
        table, quoted, chapters, files=files, figures=figures
    ).encode()
    report_dir = build_dir / "report"
    for path, content in files.items():
        write_atomically(report_dir / path, content)
    _remove_stale(report_dir, files)
    return report_dir / "index.html"


def load_claim_table(path: Path) -> pd.DataFrame:
    """The judged claims, `build/claims.csv`, every cell as text."""
    if not path.is_file():
        raise _unfinished("no claims", path)
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    missing = [name for name in claims.COLUMNS if name not in table]
    if missing or table.empty:
        raise _unfinished("no claims in it" if table.empty else f"no column {missing[0]}", path)
    return table


def load_chapters(build_dir: Path) -> list[ChapterPage]:
    """Every executed chapter of a build, in the order of their numbers."""
    found = sorted((build_dir / "notebooks").glob("[0-9][0-9]-*.ipynb"))
    notebooks = [path for path in found if not path.name.endswith(UNFINISHED)]
    if not notebooks:
        raise _unfinished("no executed chapter", build_dir / "notebooks")
    return [load_chapter(path, build_dir) for path in notebooks]


def chapter_html(chapters: Sequence[ChapterPage], position: int) -> str:
    """The page of one chapter, with links to its neighbours and to the claims."""
    return render(
        "chapter.html",
        root="../",
        chapter=chapters[position],
        chapters=chapters,
        before=chapters[position - 1] if position else None,
        after=chapters[position + 1] if position + 1 < len(chapters) else None,
    )


def overview_html(
    table: pd.DataFrame,
    quoted: Mapping[str, Value],
    chapters: Sequence[ChapterPage],
    *,
    files: Mapping[Path, bytes],
    figures: Sequence[SavedFigure],
) -> str:
    """The overview: `figures`, tally, claim table, chapters, numbers; `files` lie beside it."""
    return render(
        "overview.html",
        root="",
        tally=claims.tally(table),
        verdicts=VERDICTS,
        claims=[_claim_row(row, chapters) for row in table.to_dict("records")],
        chapters=chapters,
        values=[{**asdict(value), "interval": _interval(value)} for value in quoted.values()],
        tables=_downloads(files, "tables"),
        figures=_downloads(files, "figures"),
        answer=render("saved.html", root="", figures=figures, tables=[], alt=_alt(table)),
        paper=Path("paper.pdf") in files,
    )


def _claim_row(row: Mapping[Any, str], chapters: Sequence[ChapterPage]) -> dict[str, str]:
    holders = [chapter.name for chapter in chapters if row["id"] in chapter.anchors]
    holder = CLAIMS_CHAPTER if CLAIMS_CHAPTER in holders else next(iter(holders), "")
    known = any(chapter.name == row["chapter"] for chapter in chapters)
    return {
        **row,
        "chapter_label": row["chapter"].replace("-", " "),
        "href": f"chapters/{holder}.html#{quote(row['id'])}" if holder else "",
        "chapter_href": f"chapters/{row['chapter']}.html" if known else "",
    }


def _alt(table: pd.DataFrame) -> str:
    counts = claims.tally(table)
    said = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    return (
        "Throughput and cost per token of RTX 4090s over one H100's against offered rate, "
        f"with intervals; verdicts on {counts['claims']} claims: {said}"
    )


def _interval(value: Value) -> str:
    if value.low is None or value.high is None:
        return ""
    return values.interval_text(value.low, value.high)


def _downloads(files: Mapping[Path, bytes], folder: str) -> list[Download]:
    inside = sorted(path for path in files if path.parent.name == folder)
    return [
        Download(
            title=in_words(stem),
            files=tuple(path.as_posix() for path in inside if path.stem == stem),
            rows=max(0, files.get(Path(folder) / f"{stem}.csv", b"").count(b"\n") - 1),
        )
        for stem in dict.fromkeys(path.stem for path in inside)
    ]


def _copies(build_dir: Path) -> Iterator[tuple[Path, bytes]]:
    for folder, suffixes in (("figures", (".svg", ".pdf")), ("tables", (".csv", ".tex"))):
        for path in sorted((build_dir / folder).glob("*")):
            if path.suffix in suffixes:
                yield Path(folder) / path.name, path.read_bytes()
    for name in ("claims.csv", "values.json"):
        yield Path("data") / name, (build_dir / name).read_bytes()
    if (build_dir / "paper.pdf").is_file():
        yield Path("paper.pdf"), (build_dir / "paper.pdf").read_bytes()


def _remove_stale(report_dir: Path, files: Mapping[Path, bytes]) -> None:
    for path in [p for p in report_dir.rglob("*") if p.is_file()]:
        if path.relative_to(report_dir) not in files:
            path.unlink()


def _unfinished(what: str, where: Path) -> InputError:
    return InputError(
        "nothing to report",
        got=what,
        expected="a finished build",
        where=where,
        do="run make reproduce",
    )
