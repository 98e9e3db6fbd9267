"""A program that ends with all its children, whatever happens to whoever started it.

Run as a script this file is the keeper: a small process between the runner and the program. It
adopts every orphan below it, and ends them all when the program ends, or when the pipe from the
runner closes, which the kernel does even if the runner is killed. Linux only; it imports nothing
but the standard library, so that it starts in milliseconds.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
GRACE_S = 5.0  # between asking a program to end and killing it
LOG_END_LINES = 25


class ProgramError(RuntimeError):
    """A program failed: `reason` is a short code, `log_end` what it said last."""

    def __init__(self, reason: str, detail: str, log_end: str) -> None:
        """Keep the parts of the line, and the log's end."""
        self.reason = reason
        self.detail = detail
        self.log_end = log_end
        super().__init__(f"{reason}: {detail}")


@dataclass(frozen=True)
class Kept:
    """A running program: the keeper's process, and the file that holds all the program says."""

    keeper: subprocess.Popen[bytes]
    log: Path

    def has_ended(self) -> bool:
        """Whether the program, and with it everything it started, is gone."""
        return self.keeper.poll() is not None


@contextlib.contextmanager
def kept(
    command: Sequence[str | Path], *, log: Path, env: Mapping[str, str] | None = None
) -> Iterator[Kept]:
    """Run a program while the block lasts; after it no process of its tree is left.

    Its output goes to `log` as it comes. `env` is added to this process's environment. Raises
    OSError if the log cannot be written.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    log.touch()
    keeper = subprocess.Popen(
        [sys.executable, "-S", "-E", __file__, log, *command],
        stdin=subprocess.PIPE,
        env={**os.environ, **(env or {})},
        start_new_session=True,  # Ctrl-C reaches the runner alone, which then ends the rest
    )
    try:
        yield Kept(keeper, log)
    finally:
        _release(keeper)


def kill(program: Kept) -> None:
    """Kill a program and all it started at once, as when its machine goes down."""
    _, *below = descendants(program.keeper.pid) or [0]  # the first is the keeper, who clears up
    for pid in below:
        _signal(pid, signal.SIGKILL)


def wait(program: Kept, timeout_s: float) -> int | None:
    """The program's exit code once it has ended, or None if it still runs after `timeout_s`."""
    try:
        return program.keeper.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None


def log_end(log: Path, lines: int = LOG_END_LINES) -> str:
    """The last lines of a log, without progress bars and blank lines; empty if there is no log."""
    if not log.is_file():
        return ""
    text = log.read_text(errors="replace").replace("\r", "\n")
    said = [line.rstrip() for line in text.splitlines() if line.strip() and "it/s]" not in line]
    return "\n".join(said[-lines:])


def descendants(pid: int) -> list[int]:
    """Every process below `pid`, from /proc, zombies left out."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended while we looked
            _, _, rest = stat.read_text().rpartition(")")
            state, parent = rest.split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(stat.parent.name))
    found, open_pids = [], [pid]
    while open_pids:
        below = children.get(open_pids.pop(), [])
        found += below
        open_pids += below
    return found


def _release(keeper: subprocess.Popen[bytes]) -> None:
    """Tell the keeper to end everything, by closing its pipe, and wait until it has."""
    if keeper.stdin:
        with contextlib.suppress(BrokenPipeError):
            keeper.stdin.close()
    try:
        keeper.wait(3 * GRACE_S)
    except subprocess.TimeoutExpired:
        for pid in descendants(keeper.pid):
            _signal(pid, signal.SIGKILL)
        keeper.kill()
        keeper.wait()


def _keep(log: str, command: Sequence[str]) -> int:
    """The keeper's life: start the program, wait for its end or the runner's, leave nothing."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with Path(log).open("ab") as output:
        try:
            program = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # should the keeper itself be killed
                preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
            )
        except OSError as error:
            output.write(f"cannot start {command[0]}: {error}\n".encode())
            return 127
    try:
        while program.poll() is None:
            ready, _, _ = select.select([sys.stdin], [], [], 0.1)
            if ready:
                break
    finally:
        _end_all(program)
    code = program.returncode
    return 128 - code if code < 0 else code


def _end_all(program: subprocess.Popen[bytes]) -> None:
    """Ask the program to end, then kill whatever of its tree is left, until nothing is."""
    if program.poll() is None:
        program.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(GRACE_S)
    while left := descendants(os.getpid()):
        for pid in left:
            _signal(pid, signal.SIGKILL)
        time.sleep(0.02)
        _reap()
    program.wait()


def _reap() -> None:
    """Collect orphans that this process adopted, so that they leave the process table."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _stand_before() -> None:
    """Leave the keeping to a child, and end as it does.

    Whoever kills a runner together with its children, as a cluster's scheduler may, hits this
    process; the keeper behind it goes on to clear up.
    """
    keeper = os.fork()
    if keeper:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: os.kill(keeper, signal.SIGTERM))
        _, status = os.waitpid(keeper, 0)
        sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    _stand_before()
    sys.exit(_keep(sys.argv[1], sys.argv[2:]))
