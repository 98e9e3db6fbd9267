"""Documents: what README and ARTIFACT say is what there is."""

import re
import shlex
import subprocess
import sys

import pandas as pd
import pytest

from hetinfer.claims import tally
from hetinfer.paths import data_dir, root_dir, sha256_of
from hetinfer.verification import ANSWER

ROOT = root_dir()
DOCUMENTS = ("README.md", "ARTIFACT.md", "CONTRIBUTING.md")


def test_the_readme_tally_is_the_expected_one():
    table = pd.read_csv(data_dir("expected") / "claims.csv", keep_default_na=False)
    counts = list(tally(table).values())
    readme = (ROOT / "README.md").read_text().split("<!-- tally")[1].split("\n\n")[0]
    assert [int(n) for n in re.findall(r"\| \*{0,2}(\d+)\*{0,2} \|", readme)] == counts


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_names_only_targets_that_exist(name):
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", (ROOT / name).read_text(), re.MULTILINE))
    assert named <= targets


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_names_only_files_that_exist(name):
    text = (ROOT / name).read_text()
    paths = re.findall(r"`((?:data|src|notebooks|paper|tests)/[\w./-]+\.\w+)`", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_readme_shows_the_answer_of_the_expected_build():
    hashes = (data_dir("expected") / "figures.sha256").read_text()
    assert f"]({ANSWER.as_posix()})" in (ROOT / "README.md").read_text()
    assert f"{sha256_of(ROOT / ANSWER)}  {ANSWER.name}" in hashes


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) < 200


def test_the_readme_lists_every_chapter():
    listed = re.findall(r"^\| `([\w-]+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    chapters = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert chapters <= set(listed)


def commands(name: str) -> list[str]:
    """Each `hetinfer` command of a document, in code blocks and in tables; not those that need."""
    text = (ROOT / name).read_text()
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += re.findall(r"`(\.venv/bin/hetinfer [^`]+)`", text)
    ours = [line for line in lines if line.startswith(".venv/bin/hetinfer ")]
    return [line.removeprefix(".venv/bin/hetinfer ") for line in ours if "# needs" not in line]


@pytest.mark.parametrize("command", sorted({c for name in DOCUMENTS for c in commands(name)}))
def test_a_documented_command_runs(command):
    result = subprocess.run(
        [sys.executable, "-m", "hetinfer", *shlex.split(command, comments=True)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout
