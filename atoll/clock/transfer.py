"""How long a message is on its way: the cost of a real TCP transfer over a link.

One message on a connection that stays open: `latency` for the first byte, then bytes / bandwidth. On top of it:

- headers: of 1514 bytes on the link 1448 are ours (Ethernet, IP, TCP with timestamps);
- loss: each packet is lost with probability p on its own and sent again until it arrives, so 1 / (1 - p) as many bytes.
  What a congestion control loses beyond that is not modelled;
- slow start: a connection that was idle (a client trains between two messages) begins with 10 packets, and doubles what
  is in flight with every round trip until the link is full. Until then the link waits for acknowledgements.
"""

from __future__ import annotations

import numpy as np

from atoll.clock.quantities import Floats

PAYLOAD, FRAME = 1448, 1514  # bytes of a full packet: ours, and on the link
FIRST_WINDOW = 10 * PAYLOAD  # RFC 6928
_DOUBLINGS = 40  # a window of 10 packets is then more than any link holds


def transfer_seconds(
    nbytes: float | Floats, bandwidth: Floats, latency: Floats, loss: Floats, slow_start: bool
) -> Floats:
    """Seconds from the first byte sent to the last received, for each client. `bandwidth` in bytes per second."""
    if np.all(np.asarray(nbytes) <= 0):
        return latency.copy()  # a message all the same
    rate = bandwidth * (PAYLOAD / FRAME) * (1 - loss)  # of our bytes
    seconds = latency + nbytes / rate
    return seconds + _waiting_for_window(nbytes, rate, 2 * latency) if slow_start else seconds


def _waiting_for_window(nbytes: float | Floats, rate: Floats, round_trip: Floats) -> Floats:
    """Seconds that the link stands idle: in every round trip that a window does not fill, before the last one."""
    idle, window, sent = np.zeros_like(rate), float(FIRST_WINDOW), float(FIRST_WINDOW)
    for _ in range(_DOUBLINGS):
        more = sent < np.asarray(nbytes)  # of each, where they differ
        if not more.any():
            break
        idle += np.where(more, np.maximum(0.0, round_trip - window / rate), 0.0)
        window *= 2
        sent += window
    return idle
