"""The locks resolve: what they pin can be had together. Asks the package index."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hetinfer.paths import root_dir

pytestmark = pytest.mark.vllm
UV = Path(sys.executable).parent / "uv"


@pytest.mark.skipif(not UV.is_file(), reason="uv is not beside this Python")
def test_what_the_lock_for_cuda_hosts_pins_can_be_had_together():
    lock = root_dir() / "requirements-vllm-gpu.lock"
    command = [UV, "pip", "compile", lock, "--universal", "--python-version", "3.11", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found, pinned = (
        set(re.findall(r"^[a-z0-9._-]+==[^\s;\\]+", text, re.MULTILINE))
        for text in (done.stdout, lock.read_text())
    )
    assert pinned == found
