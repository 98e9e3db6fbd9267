"""The stand-in for the driver's NVML library, built from C, and scripts run with it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

STAND_IN = Path(__file__).with_suffix(".c")


def build_stand_in(folder, *flags):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler to build the NVML stand-in with")
    library = folder / "libnvidia-ml.so.1"
    soname = "-Wl,-soname,libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", soname, *flags, "-o", library, STAND_IN]
    subprocess.run(command, check=True)
    return folder


def run_with(library_dir, script, defects="", **env):
    source = str(Path(__file__).parents[1] / "src")
    added = {"LD_LIBRARY_PATH": str(library_dir), "NVML_STAND_IN": defects, "PYTHONPATH": source}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **added, **env},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)
