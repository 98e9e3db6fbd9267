"""Where things are: the only module that knows the tree, and the only one that writes files."""

import hashlib
import os
import tempfile
from pathlib import Path

from hetinfer.errors import InputError


def root_dir() -> Path:
    """The clone that holds `data/`: `HETINFER_ROOT` if set, else the folder above `src/`."""
    root = Path(os.environ.get("HETINFER_ROOT") or Path(__file__).resolve().parents[2])
    if not (root / "data" / "recorded").is_dir():
        raise InputError(
            "no data folder",
            got="none",
            expected="data/recorded in a clone of hetinfer",
            where=root,
            do="run inside a clone, or set HETINFER_ROOT to one",
        )
    return root


def data_dir(name: str) -> Path:
    """A folder of `data/`: recorded, published, reference, measured, fitted or expected."""
    return root_dir() / "data" / name


def default_build_dir() -> Path:
    """`build/` of the clone, where everything generated goes unless another folder is named."""
    return root_dir() / "build"


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file whole or not at all: a temporary file beside it, then a rename.

    A reader, or a build that was killed, never meets half a file. An OSError names the file.
    """
    payload = content.encode() if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, payload)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _replace(path: Path, payload: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
