"""The project's own promises: style, types, import contract, environments that say the same."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hetinfer.paths import root_dir

ROOT = root_dir()
BIN = Path(sys.executable).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["mypy"],
        ["lint-imports"],
        ["nbstripout", "--verify", *sorted(map(str, (ROOT / "notebooks").glob("*.ipynb")))],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_the_tree_is_clean(command):
    result = subprocess.run(
        [str(BIN / command[0]), *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def pinned(name: str) -> set[str]:
    lines = (ROOT / name).read_text().splitlines()
    return {line.split("==")[0].lower() for line in lines if re.match(r"[A-Za-z]", line)}


def names_of(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=\[ ]", line)[0].lower() for line in requirements}


def test_each_lock_holds_what_it_is_for():
    extras = PROJECT["optional-dependencies"]
    assert names_of(PROJECT["dependencies"] + extras["test"]) <= pinned("requirements.lock")
    assert names_of(extras["cluster"]) <= pinned("requirements-cluster.lock")


def test_the_lock_has_hashes_and_names_no_index():
    text = (ROOT / "requirements.lock").read_text()
    assert "--hash=sha256:" in text
    assert "://" not in text
    assert "--index" not in text


def test_conda_gets_the_same_environment():
    text = (ROOT / "environment.yml").read_text()
    assert f"python{PROJECT['requires-python']}" in text
    assert re.findall(r"^\s+- (-r .*)$", text, re.MULTILINE) == ["-r requirements.lock"]


def test_the_version_is_the_same_everywhere():
    import hetinfer

    citation = (ROOT / "CITATION.cff").read_text()
    assert hetinfer.__version__ == PROJECT["version"]
    assert f"version: {PROJECT['version']}" in citation


def test_importing_the_package_imports_no_engine():
    engines = "('vllm', 'torch', 'ray')"
    code = f"import sys, hetinfer.cli; sys.exit(any(m in sys.modules for m in {engines}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
