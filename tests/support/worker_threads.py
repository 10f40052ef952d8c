"""Workers over TCP in threads of one process: the whole of the network, and none of the start of processes."""

import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from atoll.messages import AddressList, ConnectionLimits, Ended, MutualTls, Worker, WorkerTopology, run_worker
from atoll.messages.addresses import callers

QUICK = ConnectionLimits(joining=3.0, patience=0.6, heartbeat=0.1, silence=0.4, handshake=0.5)


class WorkerThreads:
    """Listeners for all of a topology, and a thread for each worker that is started."""

    def __init__(self, topology: WorkerTopology, limits: ConnectionLimits = QUICK) -> None:
        self.topology, self.limits = topology, limits
        self.pool = ThreadPoolExecutor(8)
        called = [name for name in topology.names if callers(topology, name)]
        self.listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in called}
        self.places: dict[str, tuple[str, int]] = {n: x.getsockname()[:2] for n, x in self.listeners.items()}

    def start(
        self, name: str, worker: Worker, places: Mapping[str, tuple[str, int]] | None = None,
        tls: MutualTls | None = None, topology: WorkerTopology | None = None, seconds: float = 8.0,
        limits: ConnectionLimits | None = None,
    ) -> "Future[Ended]":  # fmt: skip
        addresses = AddressList({**self.places, **(places or {})})
        options = {"tls": tls, "seconds": seconds, "limits": limits or self.limits}
        listener = self.listeners.get(name)
        return self.pool.submit(
            run_worker, name, worker, topology or self.topology, addresses, listener=listener, **options
        )

    def run(self, make: Callable[[str], Worker], tls: Mapping[str, MutualTls] | None = None) -> dict[str, Ended]:
        """All of them, to their end."""
        futures = {name: self.start(name, make(name), tls=(tls or {}).get(name)) for name in self.topology.names}
        return {name: future.result(20) for name, future in futures.items()}

    def close(self) -> None:
        for listener in self.listeners.values():
            listener.close()
        self.pool.shutdown(wait=True)
