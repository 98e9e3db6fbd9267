"""The paper: its text and a build's values, claims and figures, typeset to the same bytes."""

from pathlib import Path

from hetinfer.errors import InputError
from hetinfer.paths import root_dir, write_atomically

TIMESTAMP = 1764547200  # 2025-12-01, the same in every PDF: a build's date says nothing about it


def compile_paper(build_dir: Path) -> Path:
    """Typeset `paper/main.typ` into `build_dir`/paper.pdf and return that path.

    Only the fonts that come with typst are used, and no network. Raises InputError where the build
    lacks a file or a value that the text quotes.
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
            sys_inputs={"build": build_dir.resolve().as_posix()},
            ignore_system_fonts=True,
            timestamp=TIMESTAMP,
        )
    except typst.TypstError as error:
        raise _unfinished(str(error), source) from None
    target = build_dir / "paper.pdf"
    write_atomically(target, pdf)
    return target


def _unfinished(got: str, where: Path) -> InputError:
    return InputError(
        "paper cannot be typeset",
        got=got,
        expected="every value, claim and figure that its text names",
        where=where,
        do="run make reproduce",
    )
