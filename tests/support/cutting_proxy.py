"""A TCP proxy on this machine that cuts connections after so many bytes, or lets nothing through any more."""

import socket
import struct
import threading
from contextlib import suppress


class CuttingProxy:
    """Connection i is cut after `cuts[i]` bytes in both directions together; those beyond the list are left alone."""

    def __init__(self, target: tuple[str, int], cuts: tuple[int, ...] = ()) -> None:
        self.target, self.cuts = target, cuts
        self.frozen = threading.Event()
        self.connections = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()[:2]
        self.sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                ours, _ = self.listener.accept()
                try:
                    theirs = socket.create_connection(self.target, timeout=5)
                except OSError:
                    ours.close()
                    continue
                left = [self.cuts[self.connections] if self.connections < len(self.cuts) else 1 << 60]
                self.connections += 1
                self.sockets += [ours, theirs]
                for a, b in ((ours, theirs), (theirs, ours)):
                    threading.Thread(target=self._pump, args=(a, b, left), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, left: list[int]) -> None:
        with suppress(OSError):
            while data := source.recv(4096):
                if self.frozen.is_set():
                    continue
                data, left[0] = data[: max(0, left[0])], left[0] - len(data)
                sink.sendall(data)
                if left[0] <= 0:
                    break
        for one in (source, sink):
            abort(one)

    def close(self) -> None:
        for one in (self.listener, *self.sockets):
            with suppress(OSError):
                one.close()


def abort(one: socket.socket) -> None:
    """Cut, not closed in good order."""
    with suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):
        one.close()
