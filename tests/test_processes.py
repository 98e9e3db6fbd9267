import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hetinfer.measurement.processes import descendants, kept, log_end, wait

# a program with a child in its own session, which starts another and ignores SIGTERM
TREE = """
import os, signal, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", '''
import signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "%(mark)s"])
time.sleep(600)
'''], start_new_session=True)
print("started", flush=True)
time.sleep(%(life)s)
"""
RUNNER = """
import sys, time
from pathlib import Path
from hetinfer.measurement.processes import kept
with kept([sys.executable, "-c", sys.argv[1]], log=Path(sys.argv[2])):
    time.sleep(600)
"""


def tree(mark, life="600"):
    return TREE % {"mark": mark, "life": life}


def wait_until(condition, limit_s=20.0):
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.02)


def running(mark):
    """Processes whose command line holds the mark, this test's own excepted."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = line.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if mark in words and int(line.parent.name) != os.getpid():
            found.append(int(line.parent.name))
    return found


@pytest.fixture
def mark(request):
    """A sleeping time that no other process has, by which a tree is found."""
    return f"{600 + os.getpid() / 1e7:.7f}{abs(hash(request.node.name)) % 1000:03d}"


def test_a_program_that_ends_gives_its_exit_code_and_its_output(tmp_path):
    log = tmp_path / "log"
    with kept([sys.executable, "-c", "print('hello'); raise SystemExit(3)"], log=log) as program:
        assert wait(program, 20) == 3
    assert log_end(log) == "hello"


def test_waiting_for_a_program_that_goes_on_gives_none(tmp_path):
    with kept(["sleep", "600"], log=tmp_path / "log") as program:
        assert wait(program, 0.05) is None
        assert not program.has_ended()
    assert program.has_ended()


def test_a_program_that_cannot_start_says_so_in_its_log(tmp_path):
    with kept([tmp_path / "nothing"], log=tmp_path / "log") as program:
        assert wait(program, 20) == 127
    assert "cannot start" in log_end(tmp_path / "log")


def test_a_program_killed_by_a_signal_gives_128_and_the_signal(tmp_path):
    script = "import os; os.kill(os.getpid(), 9)"
    with kept([sys.executable, "-c", script], log=tmp_path / "log") as program:
        assert wait(program, 20) == 137


@pytest.mark.parametrize("life", ["600", "0.3"])
def test_nothing_of_the_tree_is_left_after_the_block(tmp_path, mark, life):
    with kept([sys.executable, "-c", tree(mark, life)], log=tmp_path / "log") as program:
        wait_until(lambda: len(running(mark)) >= 2)
        if life != "600":
            assert wait(program, 20) == 0
    assert running(mark) == []


def test_nothing_is_left_after_an_error_in_the_block(tmp_path, mark):
    with (
        pytest.raises(RuntimeError),
        kept([sys.executable, "-c", tree(mark)], log=tmp_path / "log"),
    ):
        wait_until(lambda: len(running(mark)) >= 2)
        raise RuntimeError
    assert running(mark) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_after_the_runner_is_ended_by_a_signal(tmp_path, mark, number):
    source = str(Path(__file__).parents[1] / "src")
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER, tree(mark), tmp_path / "log"],
        env={**os.environ, "PYTHONPATH": source},
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: any("sleep" in Path(f"/proc/{p}/comm").read_text() for p in running(mark)))
    runner.send_signal(number)
    runner.wait(30)
    wait_until(lambda: not running(mark))


def test_nothing_is_left_after_the_runner_and_its_children_are_killed_together(tmp_path, mark):
    source = str(Path(__file__).parents[1] / "src")
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER, tree(mark), tmp_path / "log"],
        env={**os.environ, "PYTHONPATH": source},
    )
    wait_until(lambda: any("sleep" in Path(f"/proc/{p}/comm").read_text() for p in running(mark)))
    children = Path(f"/proc/{runner.pid}/task/{runner.pid}/children").read_text().split()
    assert len(children) == 1
    for pid in (runner.pid, int(children[0])):
        os.kill(pid, signal.SIGKILL)
    runner.wait(30)
    wait_until(lambda: not running(mark))


def test_descendants_are_found_below_and_nowhere_else():
    with subprocess.Popen(["sleep", "600"]) as child:
        assert child.pid in descendants(os.getpid())
        assert descendants(child.pid) == []
        child.kill()


def test_the_end_of_a_log_leaves_progress_bars_out(tmp_path):
    log = tmp_path / "log"
    log.write_text("one\n\rprogress 5.0it/s]\ntwo\n\nthree\n")
    assert log_end(log, 2) == "two\nthree"
    assert log_end(tmp_path / "none") == ""
