import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hetinfer.errors import InputError
from hetinfer.paths import data_dir, default_build_dir, root_dir, sha256_of, write_atomically

OLD = "old"


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_root_holds_the_recorded_runs():
    assert (data_dir("recorded") / "runs.csv").is_file()


def test_the_root_can_be_named(tmp_path, monkeypatch):
    (tmp_path / "data" / "recorded").mkdir(parents=True)
    monkeypatch.setenv("HETINFER_ROOT", str(tmp_path))
    assert (tmp_path, tmp_path / "build") == (root_dir(), default_build_dir())


def test_a_root_without_data_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("HETINFER_ROOT", str(tmp_path))
    with pytest.raises(InputError, match="HETINFER_ROOT"):
        root_dir()


def test_a_hash_is_that_of_the_bytes(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    assert hashlib.sha256(b"abc").hexdigest() == sha256_of(tmp_path / "f")


@pytest.mark.parametrize("content", ["text é\n", b"bytes\x00\r\n", ""])
def test_a_file_is_written_to_the_byte_in_a_new_folder(tmp_path, content):
    path = tmp_path / "new" / "f"
    write_atomically(path, content)
    expected = content.encode() if isinstance(content, str) else content
    assert expected == path.read_bytes()
    assert ["f"] == files(path.parent)


def test_everyone_may_read_what_is_written(tmp_path):
    write_atomically(tmp_path / "f", "x")
    assert 0o644 == (tmp_path / "f").stat().st_mode & 0o777


def test_a_target_that_is_a_folder_is_named_and_nothing_is_left(tmp_path):
    (tmp_path / "f").mkdir()
    with pytest.raises(OSError, match="f") as error:
        write_atomically(tmp_path / "f", "x")
    assert str(tmp_path / "f") == error.value.filename
    assert ["f"] == files(tmp_path)


def test_a_parent_that_is_a_file_is_an_error(tmp_path):
    (tmp_path / "f").write_text(OLD)
    with pytest.raises(OSError, match="f"):
        write_atomically(tmp_path / "f" / "g", "x")
    assert OLD == (tmp_path / "f").read_text()


def test_text_that_cannot_be_encoded_leaves_the_old_file(tmp_path):
    (tmp_path / "f").write_text(OLD)
    with pytest.raises(UnicodeEncodeError):
        write_atomically(tmp_path / "f", "\ud800")
    assert (["f"], OLD) == (files(tmp_path), (tmp_path / "f").read_text())


def run_python(code, path, **options):
    program = f"import sys\nfrom pathlib import Path\nfrom hetinfer.paths import *\n{code}"
    return subprocess.Popen([sys.executable, "-c", program, str(path)], **options)


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path):
    (tmp_path / "f").write_text(OLD)
    code = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n    write_atomically(Path(sys.argv[1]), 'x' * 5000)\n"
        "except OSError as error:\n    sys.exit(error.filename == sys.argv[1] and 7)"
    )
    assert 7 == run_python(code, tmp_path / "f").wait(timeout=30)
    assert (["f"], OLD) == (files(tmp_path), (tmp_path / "f").read_text())


def test_a_killed_process_leaves_the_old_file_whole(tmp_path):
    path = tmp_path / "f"
    path.write_text(OLD)
    code = "while True:\n    write_atomically(Path(sys.argv[1]), 'new ' * 250_000)"
    process = run_python(code, path)
    deadline = time.monotonic() + 30
    while path.read_text() == OLD and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=30)
    assert "new " * 250_000 == path.read_text()
    left = [Path(name).suffix for name in files(tmp_path) if name != "f"]
    assert set(left) <= {".partial"}
