"""A build compared with the expected one."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from hetinfer import verification
from hetinfer.errors import InputError
from hetinfer.paths import root_dir
from hetinfer.values import quote, save_values


@pytest.fixture
def clone(tmp_path, monkeypatch) -> Path:
    """A clone with its own data folder, and a build that is the expected one."""
    shutil.copytree(root_dir() / "data", tmp_path / "data")
    monkeypatch.setenv("HETINFER_ROOT", str(tmp_path))
    build = tmp_path / "build"
    facts = {"unit": "s", "evidence": "recorded", "chapter": "01"}
    values = [
        quote("exact", 3, **facts),
        quote("recomputed", 1.25, decimals=2, **facts),
        quote("fitted", 0.5, low=0.4, high=0.6, **facts),
    ]
    save_values(values, build / "values.json")
    claims = {"id": ["S01"], "recomputed": ["1"], "verdict": ["reproduced"], "condition": [""]}
    pd.DataFrame(claims).to_csv(build / "claims.csv", index=False)
    (build / "tables").mkdir()
    pd.DataFrame({"a": [1.0, 2.0], "b": ["x", None]}).to_csv(build / "tables/t.csv", index=False)
    (build / "figures").mkdir()
    (build / "figures/answer.svg").write_text("<svg/>")
    verification.write_expected(build)
    verification.write_checksums()
    return build


def change_value(build: Path, name: str, part: str, value: float) -> None:
    path = build / "values.json"
    table = json.loads(path.read_text())
    table[name][part] = value
    path.write_text(json.dumps(table))


def compare(build: Path) -> verification.Report:
    """Without fits made anew, which take a second."""
    return verification.verify(build, refitted=())


def test_an_unchanged_build_is_verified(clone):
    report = compare(clone)
    assert report.agrees
    text = verification.report_text(report)
    assert "3 of 3 values agree" in text
    assert text.endswith("verified")


@pytest.mark.parametrize(
    ("name", "part", "value", "agrees"),
    [
        ("exact", "value", 4, False),
        ("recomputed", "value", 1.25 * (1 + 1e-8), False),
        ("recomputed", "value", 1.25 * (1 + 1e-10), True),
        ("fitted", "value", 0.5 * (1 + 5e-5), True),
        ("fitted", "high", 0.6 * (1 + 2e-4), False),
        ("fitted", "low", None, False),
    ],
)
def test_a_value_may_differ_by_its_tolerance_and_no_more(clone, name, part, value, agrees):
    change_value(clone, name, part, value)
    assert compare(clone).agrees == agrees


def test_a_missing_and_an_unexpected_value_are_named(clone):
    table = json.loads((clone / "values.json").read_text())
    table["new"] = table.pop("exact")
    (clone / "values.json").write_text(json.dumps(table))
    assert compare(clone).differences == (
        "value exact: missing, expected 3",
        "value new: not expected",
    )


def test_another_verdict_is_named(clone):
    path = clone / "claims.csv"
    path.write_text(path.read_text().replace("reproduced", "not-reproduced"))
    (line,) = compare(clone).differences
    assert line == "claim S01: verdict 'not-reproduced', expected 'reproduced'"


def test_a_changed_table_cell_is_named(clone):
    (clone / "tables/t.csv").write_text("a,b\n1.0,x\n2.5,\n")
    (line,) = compare(clone).differences
    assert line.startswith("table t.csv: row 1, a")
    (clone / "tables/t.csv").unlink()
    assert compare(clone).differences == ("table t.csv: missing",)


def test_a_figure_with_other_bytes_is_named_and_no_failure(clone):
    (clone / "figures/answer.svg").write_text("<svg> </svg>")
    report = compare(clone)
    assert report.agrees
    assert "figure answer.svg: other bytes" in verification.report_text(report)


def test_a_changed_input_is_a_failure(clone):
    path = root_dir() / "data/reference/prices.csv"
    path.write_text(path.read_text().replace("0.25", "0.26"))
    (line,) = compare(clone).differences
    assert line.startswith("data reference/prices.csv: changed")


def test_the_expected_build_gives_the_readme_its_figure(clone):
    shown = (root_dir() / verification.ANSWER).read_bytes()
    assert (clone / "figures/answer.svg").read_bytes() == shown


def test_no_build_is_one_clear_line(tmp_path):
    with pytest.raises(InputError, match="run make reproduce"):
        compare(tmp_path)


def test_two_fits_made_anew_cost_what_the_saved_ones_do(clone):
    report = verification.verify(clone)
    assert report.agrees
    assert "2 of 2 fits made anew agree" in verification.report_text(report)


def test_a_saved_fit_of_another_cost_is_named(clone):
    path = root_dir() / "data/fitted/engines.json"
    content = json.loads(path.read_text())
    keys = verification.REFITTED[1]
    for fit in content["fits"]:
        if (fit["model"], fit["gpu"], fit["gpu_count"]) == keys:
            fit["cost"] *= 1.02
    path.write_text(json.dumps(content))
    (line,) = verification.refit_differences([keys])
    assert line.startswith(f"fit {keys[0]} on 1x rtx-4090: its cost differs by 0.02")


def test_a_configuration_without_a_fit_is_an_error():
    with pytest.raises(InputError, match="nothing to refit"):
        list(verification.refit_differences([("none", "h100-pcie", 1)]))
