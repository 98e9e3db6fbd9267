"""The one style of every figure, and the one way a figure becomes a file."""

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from hetinfer.paths import write_atomically

COLUMN_WIDTH_IN = 3.5  # one column of a two-column page
PAGE_WIDTH_IN = 7.2
STUDY_RATES = (1, 4, 8, 16, 32)
# Okabe and Ito's colour-blind safe hues, chosen so that their greys differ too
GPU_COLORS: Mapping[str, str] = {
    "1x H100": "#000000",
    "2x H100": "#777777",
    "1x 4090": "#56B4E9",
    "2x 4090": "#0072B2",
    "4x 4090": "#D55E00",
    "8x 4090": "#E69F00",
}
GPU_MARKERS: Mapping[str, str] = {
    "1x H100": "o",
    "2x H100": "D",
    "1x 4090": "v",
    "2x 4090": "s",
    "4x 4090": "^",
    "8x 4090": "P",
}
_RC: dict[Any, object] = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "figure.constrained_layout.use": True,
    "figure.dpi": 110,
    "svg.fonttype": "path",
    "svg.hashsalt": "hetinfer",
    "pdf.fonttype": 42,
}


@contextmanager
def styled() -> Iterator[None]:
    """The project's style while a figure is drawn; nothing outside the block changes."""
    with mpl.rc_context(), sns.axes_style("ticks"), mpl.rc_context(_RC):
        yield


def rate_axis(axis: Axes) -> None:
    """The offered rate as x axis: logarithmic, the study's five rates as ticks."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(STUDY_RATES, labels=[f"{rate}" for rate in STUDY_RATES])
    axis.minorticks_off()
    axis.set_xlabel("offered rate (requests/s)")


def log_axis(axis: Axes) -> None:
    """A logarithmic y axis whose ticks are plain numbers: 0.01, 0.1, 1, 10."""
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.yaxis.set_minor_formatter(NullFormatter())


def parity_lines(axis: Axes, low: float, high: float) -> None:
    """The line of equal values from `low` to `high`, and those 10 % off it."""
    ends = np.array([low, high])
    axis.plot(ends, ends, color="#999999", linewidth=0.8)
    for factor in (0.9, 1.1):
        axis.plot(ends, factor * ends, color="#bbbbbb", linewidth=0.6, linestyle=":")


def caption(figure: Figure, *, evidence: str, n: str, note: str = "") -> None:
    """Write evidence class and sample size under a figure, in small grey type."""
    text = f"evidence: {evidence}; n = {n}" + (f"; {note}" if note else "")
    figure.supxlabel(text, fontsize=6, color="#555555", x=0.01, ha="left")


def save_figure(figure: Figure, path: Path) -> None:
    """Write `path`.svg and `path`.pdf, without dates, so that equal figures give equal bytes."""
    for suffix, metadata in (("svg", {"Date": None}), ("pdf", {"CreationDate": None})):
        buffer = io.BytesIO()
        with styled():
            figure.savefig(buffer, format=suffix, metadata=metadata)
        write_atomically(path.with_suffix(f".{suffix}"), buffer.getvalue())
