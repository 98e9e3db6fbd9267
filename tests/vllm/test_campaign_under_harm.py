"""Whole commands with the stand-in for vLLM: killed, interrupted, out of disk."""

import os
import random
import resource
import signal
import subprocess
import sys
import time

import pytest

from hetinfer.measurement.campaign import all_cells, load_campaign
from hetinfer.runs import load_runs
from measuring import SOURCE, left_of, make_clone, make_stand_in, small, start_command, wait_until

pytestmark = pytest.mark.vllm
KILLS = 10


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return make_stand_in(tmp_path_factory.mktemp("stand_in") / "venv")


@pytest.fixture
def clone(tmp_path, monkeypatch):
    monkeypatch.setenv("HETINFER_ROOT", str(tmp_path))
    return make_clone(tmp_path)


def test_a_campaign_killed_again_and_again_ends_with_its_cells_each_once(clone, python):
    chance = random.Random(7)
    for _ in range(KILLS):
        runner = start_command(clone, python, VLLM_STAND_IN_S="0.05")
        time.sleep(chance.uniform(0.9, 2.2))
        runner.kill()
        runner.communicate()
        wait_until(lambda: not left_of(clone))
    runner = start_command(clone, python)
    output, errors = runner.communicate(timeout=60)
    assert (runner.returncode, errors) == (0, "")
    assert output.endswith("small: 4 of 4 cells have a run, in ./data/measured/small\n")
    names = {f"{cell.name}.json" for cell in all_cells(load_campaign("small"))}
    assert names == {path.name for path in (small(clone) / "runs").iterdir()}
    runs = load_runs(small(clone) / "runs.csv")
    assert names == set(runs["source_file"])
    assert len(names) == len(runs)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_runner_leaves_no_process_and_goes_on_later(clone, python, number, code):
    runner = start_command(clone, python, VLLM_STAND_IN_S="30")
    wait_until(lambda: left_of(clone, "vllm.benchmarks"))
    runner.send_signal(number)
    runner.communicate(timeout=30)
    assert code == runner.returncode
    assert left_of(clone) == []
    assert list((small(clone) / "runs").glob("*")) == []


def test_a_full_disk_is_one_line_and_leaves_no_half_file(clone, python):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    command = [sys.executable, "-m", "hetinfer", "measure", "small", "--python", python]
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "HETINFER_ROOT": str(clone)}
    done = subprocess.run(command, env=env, preexec_fn=limit, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("hetinfer: File too large: ")
    assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in clone.rglob("*.partial")] == []
    assert left_of(clone) == []
