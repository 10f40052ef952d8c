"""What each registered round needs to be said of it in a file, for tests that go through all of them."""

from typing import Any

from atoll.rounds import ROUNDS

TIMED: dict[str, Any] = {"seconds_per_step": 0.01, "devices": "fedeval"}
BY_TIME = ("asynchronous", "fedbuff", "fedasync")
_OPTIONS: dict[str, dict[str, Any]] = {
    "asynchronous": {"concurrency": 6, "buffer": 3},
    "fedbuff": {"concurrency": 6, "buffer": 3},
    "fedasync": {"concurrency": 6},
    "hierarchical": {"edges": [2]},
    "clustered_fl": {"clusters": 4},
}


def with_round(name: str) -> dict[str, Any]:
    """The part of a file that switches to it."""
    clock = {"clock": TIMED} if name in BY_TIME else {}
    return {"round": {"name": name, **_OPTIONS.get(name, {})}, **clock}


EVERY_ROUND = {name: with_round(name) for name in ROUNDS}
