"""A clone to measure in, and an environment with the stand-in for vLLM."""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src"
CAMPAIGN = """
title = "Small"
rates_requests_per_s = [40, 20]
prompts = 6
seeds = [42]
[[configurations]]
models = ["dummy/llama-64x1"]
gpu = "cpu"
counts = [1]
[dataset]
name = "random"
input_tokens = 20
output_tokens = 4
[[variants]]
name = "one"
[[variants]]
name = "two"
[server_env]
"""


def make_clone(folder, campaign=CAMPAIGN):
    """A folder that counts as a clone, with the campaign `small` and nothing measured."""
    for name in ("recorded", "reference"):
        (folder / "data").mkdir(parents=True, exist_ok=True)
        (folder / "data" / name).symlink_to(HERE.parent / "data" / name)
    (folder / "data" / "campaigns").mkdir()
    (folder / "data" / "campaigns" / "small.toml").write_text(campaign)
    return folder


def make_stand_in(folder):
    """An environment whose Python has the stand-in; returns that Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = next(folder.glob("lib/python3*/site-packages"))
    shutil.copytree(HERE / "vllm_stand_in", packages, dirs_exist_ok=True)
    return folder / "bin" / "python"


def vllm_python():
    """The Python that has real vLLM, whether it is there or not."""
    named = os.environ.get("HETINFER_VLLM_PYTHON")
    return Path(named) if named else HERE.parent / ".venv-vllm" / "bin" / "python"


def data_campaign(name):
    """The text of a campaign that ships."""
    return (HERE.parent / "data" / "campaigns" / f"{name}.toml").read_text()


def with_defect(clone, defect):
    """Let the stand-in show a defect from now on; '' for none."""
    path = clone / "data" / "campaigns" / "small.toml"
    path.write_text(CAMPAIGN + f'VLLM_STAND_IN = "{defect}"\n')


def small(clone):
    """The folder of the campaign's results."""
    return clone / "data" / "measured" / "small"


def start_command(clone, python, *options, **env):
    """`hetinfer measure small` as a process of its own."""
    command = [sys.executable, "-m", "hetinfer", "measure", "small", "--python", python, *options]
    return subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "HETINFER_ROOT": str(clone), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def left_of(clone, word=""):
    """Processes that name the clone, and the word, in their command line, or write to its logs.

    Engines rename themselves, but keep their output where it was.
    """
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            said = (process / "cmdline").read_bytes().decode(errors="replace")
            writes = str((process / "fd" / "1").readlink())
            if word in said and (str(clone) in said or writes.startswith(str(clone))):
                found.append(int(process.name))
    return [pid for pid in found if pid != os.getpid()]


def wait_until(condition, limit_s=30.0):
    """Return when the condition holds; AssertionError if it takes too long."""
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.02)
