"""Every worker in a process of its own on this machine: loopback, and ports that the system chooses."""

from __future__ import annotations

import multiprocessing
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from atoll.errors import ProtocolError
from atoll.messages.actor import Refused
from atoll.messages.addresses import AddressList, callers
from atoll.messages.connection_limits import USUAL_LIMITS, ConnectionLimits
from atoll.messages.ended import Ended
from atoll.messages.frames import layout_of
from atoll.messages.over_tcp import StrandedError, run_worker
from atoll.messages.worker import Worker
from atoll.messages.worker_topology import WorkerTopology
from atoll.wire import decode, encode

HOST = "127.0.0.1"
_STARTING = 120.0  # seconds for processes to import what they need
_LEAVING = 2.0


def run_processes(
    make: Callable[[str], Worker],
    topology: WorkerTopology,
    *,
    seconds: float = 300.0,
    limits: ConnectionLimits = USUAL_LIMITS,
    threads: int | None = None,
) -> Ended:
    """Run `make(name)` of every worker in a process of its own, and bring their results together.

    `make` is called there: a function of a module, or something else that pickles. A process that is killed is in
    `gone`; a worker that fails is a ProtocolError, which names whose failure left others alone before those others.
    `threads` of torch in each: as many as here, unless said otherwise.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["atoll.messages"])
    began = time.monotonic()
    children: dict[str, _Child] = {}
    try:
        for name in topology.names:
            ours, theirs = context.Pipe()
            given = (make, name, topology, theirs, seconds, limits, threads or torch.get_num_threads())
            process = context.Process(target=_live, args=given, daemon=True, name=f"atoll-{name}")
            process.start()
            theirs.close()
            children[name] = _Child(process, ours)
        _introduce(children)
        _collect(children, time.monotonic() + seconds + limits.joining)
    finally:
        for child in children.values():
            child.end()
    return _ended(children, time.monotonic() - began)


@dataclass
class _Child:
    """A process, the line to it, and what it said."""

    process: BaseProcess
    line: Connection
    said: dict[str, Any] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        return "result" in self.said or "error" in self.said or "killed" in self.said

    def hear(self) -> None:
        """One word; or that it is gone without one."""
        try:
            self.said |= self.line.recv()
        except (EOFError, OSError):
            self.process.join(_LEAVING)
            code = self.process.exitcode
            by = f"killed by {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
            self.said["killed"] = f"its process ended without a word ({by})"

    def end(self) -> None:
        """Within seconds, whatever it is at."""
        self.process.join(_LEAVING if self.over else 0)
        for stop in (self.process.terminate, self.process.kill):
            if self.process.is_alive():
                stop()
                self.process.join(_LEAVING)
        self.line.close()


def _introduce(children: Mapping[str, _Child]) -> None:
    """Everybody learns where the others are."""
    until = time.monotonic() + _STARTING
    for name, child in children.items():
        if not child.line.poll(max(0.0, until - time.monotonic())):
            raise ProtocolError(f"{name}: its process did not start within {_STARTING:g} seconds. Is the machine busy?")
        child.hear()
    ports = {name: child.said["port"] for name, child in children.items() if child.said.get("port")}
    for child in children.values():
        with suppress(OSError):
            child.line.send(ports)


def _collect(children: Mapping[str, _Child], until: float) -> None:
    while waiting := {child.line: child for child in children.values() if not child.over}:
        ready = wait(list(waiting), max(0.0, until - time.monotonic()))
        if not ready:
            return
        for line in ready:
            waiting[line].hear()  # type: ignore[index]


def _ended(children: Mapping[str, _Child], seconds: float) -> Ended:
    failed = {name: child.said["error"] for name, child in children.items() if "error" in child.said}
    silent = [name for name, child in children.items() if not child.over]
    if failed or silent:
        causes = [name for name in failed if not children[name].said["stranded"]]
        name = next(iter([*causes, *failed, *silent]))
        raise ProtocolError(f"worker {name!r}: {failed.get(name, 'did not end in time, and was stopped')}")
    results = {name: decode(child.said["result"]).tree for name, child in children.items() if "result" in child.said}
    refused = tuple(Refused(*one) for child in children.values() for one in child.said.get("refused", ()))
    gone = {name: child.said["killed"] for name, child in children.items() if "killed" in child.said}
    return Ended(results, gone, refused, seconds)


def _live(
    make: Callable[[str], Worker],
    name: str,
    topology: WorkerTopology,
    line: Connection,
    seconds: float,
    limits: ConnectionLimits,
    threads: int,
) -> None:
    """A child's life."""
    torch.set_num_threads(threads)
    try:
        worker = make(name)
        listener = socket.create_server((HOST, 0)) if callers(topology, name) else None
        line.send({"port": listener.getsockname()[1] if listener else 0})
        places = {other: (HOST, port) for other, port in line.recv().items()}
        ended = run_worker(
            name, worker, topology, AddressList(places), seconds=seconds, limits=limits, listener=listener
        )
        result = ended.results[name]
        data = encode(layout_of(result), result, kind="result", round=0, sender=topology.index(name))
        line.send({"result": data, "refused": [tuple(one) for one in ended.refused]})
    except KeyboardInterrupt:
        return
    except Exception as e:  # a stranger's worker may raise anything
        notes = "".join(f" ({note})" for note in getattr(e, "__notes__", ()))
        with suppress(OSError):
            line.send({"error": f"{type(e).__name__}: {e}{notes}", "stranded": isinstance(e, StrandedError)})
