"""Runs a command as a peer would be run: with a time limit, counting the memory of all its processes together.

Linux only: memory is read from /proc. A process that leaves its parent (Ray's do) becomes a child of ours and still
counts, and nothing that was started outlives the run.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SAMPLE_SECONDS = 0.2
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of Linux's prctl


@dataclass(frozen=True)
class Outcome:
    code: int | None  # None: ended for taking too long
    output: str
    started: float  # time.time()
    wall_seconds: float
    peak_bytes: int  # of all processes together
    processes: int  # at most, at one moment


def watch(command: Sequence[str | Path], env: Mapping[str, str], limit_seconds: float, log: Path, cwd: Path) -> Outcome:
    """Run a command to its end, or to the limit, with its output in `log`."""
    prctl = ctypes.CDLL(None).prctl
    prctl(SUBREAPER, 1, 0, 0, 0)
    before = set(descendants(os.getpid()))
    peak = most = pid = status = 0
    with log.open("wb") as out:
        started = time.time()
        child = subprocess.Popen(command, env=dict(env), cwd=cwd, stdout=out, stderr=out, start_new_session=True)
        try:
            while True:
                pid, status = os.waitpid(child.pid, os.WNOHANG)
                wall = time.time() - started
                if pid or wall > limit_seconds:
                    break
                running = [p for p in descendants(os.getpid()) if p not in before]
                peak, most = max(peak, together(running)), max(most, len(running))
                time.sleep(SAMPLE_SECONDS)
        finally:
            end([p for p in descendants(os.getpid()) if p not in before])
            prctl(SUBREAPER, 0, 0, 0, 0)
            child.returncode = os.waitstatus_to_exitcode(status)  # we waited for it, behind its back
    return Outcome(child.returncode if pid else None, log.read_text(errors="replace"), started, wall, peak, most)


def descendants(root: int) -> list[int]:
    """The children of a process, their children, and so on."""
    children = defaultdict(list)
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                children[int(parent)].append(int(folder.name))
    return _below(root, children)


def _below(root: int, children: Mapping[int, list[int]]) -> list[int]:
    return [p for child in children.get(root, []) for p in (child, *_below(child, children))]


def together(pids: Sequence[int]) -> int:
    """Bytes of processes now, each with its part of what they share; at least the largest one's own peak so far.

    A peak between two samples is missed, except where one process makes it alone: the kernel keeps that.
    """
    now = sum(_bytes(pid, "smaps_rollup", "Pss:") for pid in pids)
    return max([now, *(_bytes(pid, "status", "VmHWM:") for pid in pids)])


def _bytes(pid: int, file: str, key: str) -> int:
    """One figure of a process; 0 if it has gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1]) * 1024
    return 0


def end(pids: Sequence[int]) -> None:
    """Ask processes to go, then make them, and wait until they have."""
    for how, seconds in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0)):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, how)
        limit = time.time() + seconds
        while pids and time.time() < limit:
            pids = [pid for pid in pids if not _gone(pid)]
            time.sleep(0.05)


def _gone(pid: int) -> bool:
    with suppress(ChildProcessError):
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
    return not Path(f"/proc/{pid}").exists()


def last_word(output: str) -> str:
    """The line of an output that says most about a failure: the last that names an error, else the last of all."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    named = [line for line in lines if "Error" in line or "ERROR" in line]
    return (named or lines or ["no output"])[-1][:300]
