"""Notebooks: how they are written, and that each runs end to end through papermill."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from hetinfer.errors import InputError
from hetinfer.notebooks import (
    NotebookError,
    check_parameters,
    notebook_parameters,
    run_notebook,
    without_timing,
)
from hetinfer.paths import root_dir

NOTEBOOKS = sorted((root_dir() / "notebooks").glob("*.ipynb"))
CHAPTERS = [path for path in NOTEBOOKS if re.match(r"0[1-9]|1\d", path.name)]
FORBIDDEN = re.compile(r"^\s*(def|class|for|while|try|async)\b|\bplt\.|matplotlib", re.MULTILINE)


def cells_of(path: Path, kind: str = "code") -> list[nbformat.NotebookNode]:
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == kind]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_thin_tagged_and_stored_without_outputs(path):
    code = cells_of(path)
    assert not [cell.source for cell in code if FORBIDDEN.search(cell.source)]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    tagged = [cell for cell in code if "parameters" in cell.metadata.get("tags", [])]
    assert len(tagged) == 1
    assert {"seed", "build_dir"} <= set(re.findall(r"^(\w+) =", tagged[0].source, re.MULTILINE))
    assert len(nbformat.read(path, 4).cells) <= 26


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_asks_a_question_and_answers_it_from_its_values(path):
    title = cells_of(path, "markdown")[0].source.splitlines()[0]
    assert title.startswith("# ")
    assert title.endswith("?")
    code = cells_of(path)
    assert "place_answer()" in code[0].source
    assert "save_values" in code[-1].source
    assert "assert " in code[-1].source


@pytest.mark.notebooks
@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_runs_at_kick_size(path, tmp_path):
    parameters = {**notebook_parameters(path, "kick"), "build_dir": str(tmp_path)}
    run_notebook(path, tmp_path / "notebooks" / path.name, parameters)
    assert (tmp_path / "results" / f"{path.stem}.values.json").is_file()


def small_notebook(path: Path, source: str) -> Path:
    node = nbformat.v4.new_notebook()
    node.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    parameters = nbformat.v4.new_code_cell('seed = 0\nbuild_dir = "build"')
    parameters.metadata.tags = ["parameters"]
    node.cells = [parameters, nbformat.v4.new_code_cell(source)]
    nbformat.write(node, path)
    return path


def test_a_failed_chapter_keeps_its_notebook_and_leaves_no_target(tmp_path):
    notebook = small_notebook(tmp_path / "n.ipynb", "1 / 0")
    target = tmp_path / "out" / "n.ipynb"
    target.parent.mkdir()
    target.write_text("an earlier run")
    with pytest.raises(NotebookError, match=r"cell 2 failed: ZeroDivisionError") as raised:
        run_notebook(notebook, target, {})
    assert "1 / 0" in str(raised.value)
    assert not target.exists()
    assert "ZeroDivisionError" in (target.parent / "n.failed.ipynb").read_text()
    assert [path.name for path in target.parent.iterdir()] == ["n.failed.ipynb"]


def test_an_unknown_parameter_is_refused_before_anything_runs(tmp_path):
    notebook = small_notebook(tmp_path / "n.ipynb", "1")
    with pytest.raises(InputError, match="'sead', expected one of seed, build_dir"):
        run_notebook(notebook, tmp_path / "out.ipynb", {"sead": 1})
    assert not (tmp_path / "out.ipynb").exists()


def test_a_missing_notebook_and_an_unknown_size_are_named(tmp_path):
    with pytest.raises(InputError, match="no notebook"):
        check_parameters(tmp_path / "none.ipynb", {})
    with pytest.raises(InputError, match="unknown size: got 'huge'"):
        notebook_parameters(NOTEBOOKS[0], "huge")


def test_sizes_name_only_parameters_that_exist():
    for size in ("kick", "full"):
        for path in NOTEBOOKS:
            check_parameters(path, notebook_parameters(path, size))


def test_equal_runs_leave_equal_notebooks():
    node = {
        "metadata": {"papermill": {"start_time": "now"}, "kernelspec": {}},
        "cells": [
            {
                "id": "b7d9",
                "metadata": {"tags": ["injected-parameters"], "papermill": {}, "execution": {}},
            }
        ],
    }
    clean = json.loads(without_timing(json.dumps(node)))
    assert clean["metadata"] == {"kernelspec": {}}
    assert clean["cells"] == [
        {"id": "injected-parameters", "metadata": {"tags": ["injected-parameters"]}}
    ]


def test_a_killed_run_leaves_nothing_that_make_would_believe(tmp_path):
    notebook = small_notebook(tmp_path / "n.ipynb", "import time; time.sleep(60)")
    target = tmp_path / "out" / "notebooks" / "n.ipynb"
    command = [sys.executable, "-m", "hetinfer", "run", str(notebook)]
    process = subprocess.Popen([*command, "--build-dir", str(tmp_path / "out")])
    deadline = time.monotonic() + 30
    while not list(target.parent.glob("*.partial.ipynb")) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.kill()
    process.wait()
    assert list(target.parent.glob("*.partial.ipynb"))
    assert not target.exists()
