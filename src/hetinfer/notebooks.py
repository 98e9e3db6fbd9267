"""Running one notebook: parameters checked, output whole or not at all, errors where they are."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from hetinfer.errors import InputError
from hetinfer.paths import root_dir, write_atomically

TIMING_KEYS = ("papermill", "execution")  # times and paths that differ between equal runs


def notebook_parameters(notebook: Path, size: str) -> dict[str, Any]:
    """The parameters that `notebooks/sizes.toml` gives a notebook at a size; none at `default`.

    Raises InputError for an unknown size.
    """
    path = root_dir() / "notebooks" / "sizes.toml"
    sizes = tomllib.loads(path.read_text())
    if size != "default" and size not in sizes:
        raise InputError(
            "unknown size",
            got=repr(size),
            expected=f"one of default, {', '.join(sizes)}",
            where=path,
            do="name one of these",
        )
    return dict(sizes.get(size, {}).get(notebook.stem, {}))


class NotebookError(RuntimeError):
    """A cell failed: which, with what error, and where the notebook as far as it ran was kept."""


def run_notebook(notebook: Path, target: Path, parameters: dict[str, Any]) -> None:
    """Execute a notebook into `target`, which exists only if the whole of it ran.

    Papermill writes beside it, to `NAME.partial.ipynb`. A failed run keeps that file as
    `NAME.failed.ipynb` and raises NotebookError with the cell and its error. Raises InputError for
    a parameter that the notebook does not have.
    """
    import papermill
    from papermill.exceptions import PapermillExecutionError

    check_parameters(notebook, parameters)
    target = target.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    failed, partial = (target.with_suffix(f".{state}.ipynb") for state in ("failed", "partial"))
    for stale in (target, failed):
        stale.unlink(missing_ok=True)
    try:
        papermill.execute_notebook(
            notebook.absolute(),
            partial,
            parameters=parameters,
            kernel_name="python3",
            progress_bar=False,
            cwd=root_dir(),
            extra_arguments=["--IPKernelApp.log_level=CRITICAL"],
        )
    except PapermillExecutionError as error:
        partial.replace(failed)
        raise NotebookError(_failure_text(notebook, error, failed)) from None
    write_atomically(target, without_timing(partial.read_text()))
    partial.unlink()


def without_timing(notebook: str) -> str:
    """A notebook's JSON without the times and paths that differ between equal runs."""
    node = json.loads(notebook)
    node["metadata"].pop("papermill", None)
    node["metadata"].pop("language_info", None)
    for cell in node["cells"]:
        if "injected-parameters" in cell["metadata"].get("tags", []):
            cell["id"] = "injected-parameters"  # papermill gives it another one each time
        for key in TIMING_KEYS:
            cell["metadata"].pop(key, None)
    return json.dumps(node, indent=1, ensure_ascii=False) + "\n"


def check_parameters(notebook: Path, parameters: dict[str, Any]) -> None:
    """InputError for a name that the notebook's parameters cell does not define."""
    import papermill

    if not notebook.is_file():
        raise InputError(
            "no notebook",
            got=notebook.name,
            expected="a file",
            where=notebook.parent,
            do="name one of notebooks/*.ipynb",
        )
    known = list(papermill.inspect_notebook(str(notebook)))
    for name in parameters:
        if name not in known:
            raise InputError(
                "unknown parameter",
                got=repr(name),
                expected=f"one of {', '.join(known)}",
                where=notebook,
                do="correct its name",
            )


def _failure_text(notebook: Path, error: Any, failed: Path) -> str:
    colours = re.compile(r"\x1b\[[0-9;]*m")
    source = "\n".join(f"    {line}" for line in error.source.splitlines())
    last_lines = colours.sub("", "\n".join(error.traceback)).splitlines()[-8:]
    return "\n".join(
        [
            f"{notebook.name}: cell {error.exec_count} failed: {error.ename}: {error.evalue}",
            source,
            *(f"  | {line}" for line in last_lines),
            f"The notebook as far as it ran: {failed}",
        ]
    )
