"""Claims: each printed statement, recomputed and judged by one rule."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pandas as pd

from hetinfer.claims import documents, footprint, money, performance
from hetinfer.claims.display import as_text, evidence_html, table_html, table_text
from hetinfer.claims.rule import Claim, Finding, Judgement, Verdict, judge, load_claims
from hetinfer.claims.simulated import load_simulated_sides
from hetinfer.claims.study import Study, load_fleets, load_study
from hetinfer.errors import InputError

FINDERS: Mapping[str, Callable[[Claim, Study], Finding]] = {
    f"S{number:02d}": getattr(module, f"s{number:02d}")
    for module in (performance, money, footprint, documents)
    for number in range(1, 40)
    if hasattr(module, f"s{number:02d}")
}
COLUMNS = [
    "id", "kind", "statement", "printed", "recomputed", "low", "high", "unit", "verdict",
    "condition", "note", "simulated", "evidence", "chapter", "where", "threshold",
]  # fmt: skip


def judge_claims(study: Study) -> dict[str, Judgement]:
    """Every claim judged by the study's data, by id, in order; simulations only stand beside."""
    sides = load_simulated_sides(study.prices)
    judged = {}
    for claim in load_claims().values():
        finding = replace(FINDERS[claim.id](claim, study), simulated=sides.get(claim.id, ""))
        judged[claim.id] = Judgement(claim, finding, *judge(claim, finding))
    return judged


def find_judgement(judged: Mapping[str, Judgement], claim_id: str) -> Judgement:
    """One claim's judgement; InputError lists the ids for an unknown one."""
    wanted = claim_id.upper()
    if wanted not in judged:
        raise InputError(
            "unknown claim",
            got=repr(claim_id),
            expected=f"one of {', '.join(judged)}",
            where="data/published/claims.csv",
            do="run hetinfer claims to see them all",
        )
    return judged[wanted]


def claim_table(judged: Mapping[str, Judgement]) -> pd.DataFrame:
    """One row a claim, with the columns `COLUMNS`: what `build/claims.csv` holds."""
    rows = [
        {
            **{name: getattr(j.claim, name) for name in ("id", "kind", "statement", "printed")},
            **{name: getattr(j.claim, name) for name in ("unit", "chapter", "where", "threshold")},
            **{name: getattr(j.finding, name) for name in ("recomputed", "note", "simulated")},
            "evidence": j.finding.evidence,
            "low": j.finding.bounds[0] if j.finding.bounds else None,
            "high": j.finding.bounds[1] if j.finding.bounds else None,
            "verdict": j.verdict,
            "condition": j.condition,
        }
        for j in judged.values()
    ]
    return pd.DataFrame(rows)[COLUMNS]


def tally(table: pd.DataFrame) -> dict[str, int]:
    """How many claims (checks left out) have each verdict, and their total."""
    verdicts = table.loc[table["kind"] == "claim", "verdict"]
    kinds = ("reproduced", "reproduced-under-condition", "not-reproduced", "not-testable")
    return {**{kind: int((verdicts == kind).sum()) for kind in kinds}, "claims": len(verdicts)}


__all__ = [
    "COLUMNS", "Claim", "Finding", "Judgement", "Study", "Verdict", "as_text", "claim_table",
    "evidence_html", "find_judgement", "judge_claims", "load_claims", "load_fleets", "load_study",
    "table_html", "table_text", "tally",
]  # fmt: skip
