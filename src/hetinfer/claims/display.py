"""Claims as a person reads them: in a terminal, and in a notebook."""

import shutil
import textwrap
from collections.abc import Mapping
from html import escape

import pandas as pd

from hetinfer.claims.rule import Judgement

MOST_CELLS_SHOWN = 40  # a longer list of cells is shown by those that contradict, then by a count
_HIDDEN_COLUMNS = ["in_scope", "cell"]


def table_text(table: pd.DataFrame) -> str:
    """The claim table for a terminal: verdict, what is printed and recomputed, the condition."""
    width = max(80, shutil.get_terminal_size((110, 24)).columns)
    lines = []
    for row in table.to_dict("records"):
        mark = " (check)" if row["kind"] == "check" else ""
        lines.append(f"{row['id']}  {row['verdict']}{mark}")
        said = f"{row['statement']} [printed: {row['printed'] or '-'}]"
        found = "; ".join(part for part in (row["recomputed"], row["condition"]) if part)
        if row["verdict"] == "not-testable":
            found = "; ".join(part for part in (row["recomputed"], row["note"]) if part)
        lines_said = [said, f"-> {found}"]
        if row["simulated"]:
            lines_said.append(f"-> simulated: {row['simulated']}")
        for text in lines_said:
            lines += textwrap.wrap(text, width, initial_indent="     ", subsequent_indent="     ")
    return "\n".join(lines)


def as_text(judgement: Judgement) -> str:
    """One claim for a terminal, with its cells."""
    claim, finding = judgement.claim, judgement.finding
    facts = {
        "printed": f"{claim.printed} {claim.unit}".strip(),
        "where": claim.where,
        "recomputed": finding.recomputed,
        "verdict": judgement.verdict,
        "condition": judgement.condition,
        "holds if": claim.threshold,
        "note": finding.note,
        "evidence": finding.evidence,
        "simulated": finding.simulated,
        "chapter": claim.chapter,
    }
    lines = [f"{claim.id}  {claim.statement}"]
    lines += [f"  {name + ':':<12}{text}" for name, text in facts.items() if text]
    if not finding.cells.empty:
        lines += ["", shown_cells(judgement).to_string(index=False)]
    return "\n".join(lines)


def shown_cells(judgement: Judgement) -> pd.DataFrame:
    """The cells of evidence, those in scope first; of a long list, those that contradict it."""
    cells = judgement.finding.cells
    ordered = cells.sort_values("in_scope", ascending=False, kind="stable")
    if len(ordered) > MOST_CELLS_SHOWN:
        contradicting = ordered[ordered["in_scope"] & ~ordered["holds"].astype(bool)]
        ordered = contradicting if len(contradicting) else ordered
    shown = ordered.head(MOST_CELLS_SHOWN).copy()
    shown["holds"] = [
        ("yes" if holds else "no") if scope else "beside it"
        for holds, scope in zip(shown["holds"], shown["in_scope"], strict=True)
    ]
    columns = ["cell", *(name for name in shown if name not in _HIDDEN_COLUMNS)]
    return shown[columns]


def table_html(table: pd.DataFrame) -> str:
    """The claim table for a notebook: each id links to its evidence further down."""
    rows = []
    for row in table.to_dict("records"):
        side = f"simulated: {row['simulated']}" if row["simulated"] else ""
        found = " - ".join(filter(None, (row["recomputed"], row["condition"], side)))
        cells = (
            f'<a href="#{row["id"]}">{row["id"]}</a>',
            escape(row["statement"]),
            escape(row["printed"]),
            escape(found),
            f'<span class="verdict {row["verdict"]}">{row["verdict"]}</span>',
        )
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(
        f'<th scope="col">{name}</th>'
        for name in ("id", "statement", "printed", "recomputed, condition", "verdict")
    )
    return f'<table class="claims"><thead><tr>{head}</tr></thead>{"".join(rows)}</table>'


def evidence_html(judged: Mapping[str, Judgement], ids: str) -> str:
    """Several claims for a notebook, by ids set off by spaces, each under its anchor."""
    return "".join(as_html(judged[claim_id]) for claim_id in ids.split())


def as_html(judgement: Judgement) -> str:
    """One claim for a notebook, with its cells, under an anchor named as its id."""
    claim, finding = judgement.claim, judgement.finding
    facts = {
        "printed": f"{claim.printed} {claim.unit} ({claim.where})",
        "recomputed": finding.recomputed,
        "condition": judgement.condition,
        "a cell holds if": claim.threshold,
        "note": finding.note,
        "evidence": finding.evidence,
        "simulated": finding.simulated,
    }
    listed = "".join(
        f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in facts.items() if text
    )
    table = ""
    if not finding.cells.empty:
        shown = shown_cells(judgement)
        count = f"{len(shown)} of {len(finding.cells)} cells"
        body = shown.to_html(index=False, border=0, float_format=lambda x: f"{x:.4g}")
        table = f"<details><summary>{count}</summary>{body}</details>"
    return (
        f'<section id="{claim.id}" class="claim"><h3>{claim.id} {escape(claim.statement)}</h3>'
        f'<p><span class="verdict {judgement.verdict}">{judgement.verdict}</span></p>'
        f"<dl>{listed}</dl>{table}</section>"
    )
