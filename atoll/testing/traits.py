"""Does an algorithm declare what it is, and does a wrapper pass that on?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from atoll import tree
from atoll.core import Algorithm, Traits
from atoll.testing.assertions import need
from atoll.tree import Tree

Wrapper = Callable[[Algorithm], Algorithm]
_OF_THE_INNER = (
    "pooled",
    "counts_clients",
    "places_by_client",
)  # a wrapper stands around one client, so it can neither add nor lose these


def check_traits(algorithm: Algorithm) -> None:
    """The traits are `Traits`, and go together."""
    declared = algorithm.traits()
    cause = "`return Traits()` is for an algorithm with nothing special about it"
    need(isinstance(declared, Traits), "traits gives Traits", type(declared).__name__, "Traits(...)", cause)
    own = declared.personal or declared.partial
    cause = "pooled data has one client, whose model is the server's"
    need(not (declared.pooled and own), "what is pooled is not personal", declared, "pooled alone", cause)


def check_records(algorithm: Algorithm, server: Tree) -> None:
    """What is to be recorded is there."""
    lost = [name for name in algorithm.traits().records if name not in server]
    cause = "a name in Traits(records=...) that init does not put into the server's state"
    need(not lost, "the server's state has what is recorded", f"no {', '.join(lost)}", "all of it", cause)


def check_places(algorithm: Algorithm, one: Tree, other: Tree) -> None:
    """What a client sends does not follow from its id, unless that is declared: a secure sum would show it by name."""
    same = tree.digest(one) == tree.digest(other)
    cause = "a place for each client in what is sent; declare Traits(places_by_client=True)"
    declared = algorithm.traits().places_by_client
    need(same or declared, "what is sent does not follow from the client's id", "another update", "the same", cause)


def check_wrapper(wrap: Wrapper, inner: Algorithm) -> None:
    """A wrapper keeps every trait of what it wraps: it may only make models personal or partial.

    >>> from atoll.algorithms import Centralised, LocalStatistics
    >>> check_wrapper(LocalStatistics, Centralised(task=None, lr=0.1))
    """
    within, around = asdict(inner.traits()), asdict(wrap(inner).traits())
    lost = [name for name, true in within.items() if true and not around[name]]
    cause = "traits of the wrapper's own; use replace(self.inner.traits(), ...)"
    need(not lost, "a wrapper keeps the traits of what it wraps", f"no {', '.join(lost)}", "every trait kept", cause)
    added = [name for name in _OF_THE_INNER if around[name] and not within[name]]
    need(not added, "a wrapper adds no client count and no pool", ", ".join(added), "only personal or partial", cause)
