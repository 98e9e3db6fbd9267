"""The paper: its text and a build's values, claims, tables and figures, typeset alike each time."""

import json
from pathlib import Path

from hetinfer.errors import InputError
from hetinfer.intervals import CONFIDENCE
from hetinfer.paper_tables import load_paper_tables
from hetinfer.paths import root_dir, write_atomically
from hetinfer.values import interval_text, load_values, rounded

TIMESTAMP = 1764547200  # 2025-12-01, the same in every PDF: a build's date says nothing about it


def compile_paper(build_dir: Path) -> Path:
    """Typeset `paper/main.typ` into `build_dir`/paper.pdf and return that path.

    Only the fonts that come with typst are used, and no network. Raises InputError where the build
    lacks a file, a table or a value that the text quotes.
    """
    import typst

    source = root_dir() / "paper" / "main.typ"
    for name in ("values.json", "claims.csv"):
        if not (build_dir / name).is_file():
            raise _unfinished(f"no {name}", build_dir)
    try:
        pdf: bytes = typst.compile(
            str(source),
            root=source.anchor,
            sys_inputs={"build": build_dir.resolve().as_posix(), "texts": paper_texts(build_dir)},
            ignore_system_fonts=True,
            timestamp=TIMESTAMP,
        )
    except typst.TypstError as error:
        raise _unfinished(str(error), source) from None
    target = build_dir / "paper.pdf"
    write_atomically(target, pdf)
    return target


def paper_texts(build_dir: Path) -> str:
    """What the text shows beside single values, as JSON: intervals by name, tables, constants."""
    quoted = load_values(build_dir / "values.json").values()
    intervals = {
        value.name: interval_text(value.low, value.high)
        for value in quoted
        if value.low is not None and value.high is not None
    }
    constants = {"confidence": rounded(100 * CONFIDENCE, 0)}
    tables = load_paper_tables(build_dir)
    return json.dumps({"intervals": intervals, "tables": tables, "constants": constants})


def _unfinished(got: str, where: Path) -> InputError:
    return InputError(
        "paper cannot be typeset",
        got=got,
        expected="every value, claim and figure that its text names",
        where=where,
        do="run make reproduce",
    )
