"""A chapter: what a notebook saves and where, so that each artefact of `build/` has one author."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from hetinfer import values
from hetinfer.errors import InputError
from hetinfer.figures.style import save_figure as write_figure
from hetinfer.paths import root_dir, write_atomically
from hetinfer.values import Value


@dataclass(frozen=True)
class Chapter:
    """A numbered chapter, such as `01-recorded-study`, and the folder that its output goes to."""

    name: str
    build_dir: Path


def open_chapter(name: str, build_dir: str) -> Chapter:
    """The chapter; a relative `build_dir` is taken from the clone's root."""
    return Chapter(name, root_dir() / build_dir)


def save_figure(chapter: Chapter, name: str, figure: Figure) -> Figure:
    """Save as `figures/NAME.svg` and `.pdf`, and hand the figure back for display."""
    write_figure(figure, chapter.build_dir / "figures" / name)
    plt.close(figure)  # the notebook shows what is handed back, and nothing twice
    return figure


def save_table(chapter: Chapter, name: str, table: pd.DataFrame) -> pd.DataFrame:
    """Save as `tables/NAME.csv` with every digit and `.tex` (booktabs), and hand it back."""
    folder = chapter.build_dir / "tables"
    write_atomically(folder / f"{name}.csv", table.to_csv(index=False, lineterminator="\n"))
    write_atomically(folder / f"{name}.tex", _latex(table))
    return table


def save_claims(chapter: Chapter, table: pd.DataFrame) -> None:
    """Save the judged claims as `claims.csv` of the build."""
    write_atomically(chapter.build_dir / "claims.csv", table.to_csv(index=False))


def show(html: str) -> None:
    """Display HTML that the package made."""
    from IPython.display import HTML, display

    display(HTML(html))


def save_result(chapter: Chapter, name: str, table: pd.DataFrame) -> None:
    """Save as `results/NAME.parquet` what another chapter reads with `load_result`."""
    write_atomically(
        chapter.build_dir / "results" / f"{name}.parquet", cast(bytes, table.to_parquet(path=None))
    )


def load_result(chapter: Chapter, name: str) -> pd.DataFrame:
    """What another chapter saved; InputError names the file when it is not there."""
    path = chapter.build_dir / "results" / f"{name}.parquet"
    if not path.is_file():
        raise InputError(
            "result missing",
            got="no file",
            expected="what an earlier chapter saves",
            where=path,
            do="run make reproduce, which runs the chapters in order",
        )
    return pd.read_parquet(path)


def save_values(chapter: Chapter, quoted: Iterable[Value]) -> dict[str, str]:
    """Save the chapter's quoted numbers as `results/CHAPTER.values.json`; returns name -> text."""
    listed = list(quoted)
    values.save_values(listed, chapter.build_dir / "results" / f"{chapter.name}.values.json")
    return {value.name: value.text for value in listed}


def place_answer() -> None:
    """Keep a place under the chapter's title for the answer that its last cell computes."""
    from IPython.display import Markdown, display

    display(Markdown("*The answer appears here once every cell has run.*"), display_id="answer")


def answer(sentence: str, texts: dict[str, str]) -> None:
    """Put the answer in its place, `{name}` filled from the chapter's values."""
    from IPython.display import Markdown, update_display

    update_display(Markdown(f"**Answer.** {sentence.format_map(texts)}"), display_id="answer")


def _latex(table: pd.DataFrame) -> str:
    escape = str.maketrans({c: f"\\{c}" for c in "%&_#$"})
    numeric = "".join("r" if pd.api.types.is_numeric_dtype(t) else "l" for t in table.dtypes)
    rows = [
        " & ".join(str(cell).translate(escape) for cell in row)
        for row in table.itertuples(index=False)
    ]
    head = " & ".join(str(name).translate(escape) for name in table.columns)
    lines = [f"\\begin{{tabular}}{{{numeric}}}", "\\toprule", f"{head} \\\\", "\\midrule"]
    return "\n".join(
        [*lines, *(f"{row} \\\\" for row in rows), "\\bottomrule", "\\end{tabular}", ""]
    )
