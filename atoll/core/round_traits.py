"""What a topology declares of itself, for whoever builds, measures or secures a run of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Part: TypeAlias = Literal[
    "secure", "broadcast", "server.root", "privacy.canaries", "noise", "local.privacy", "attack"
]  # of a file


@dataclass(frozen=True)
class RoundTraits:
    """Nothing is special unless it is declared: one server sends its model to all, and waits for one sum.

    Wrappers start from the traits of what they wrap.
    """

    per_client: bool = False  # every client has a model of its own, with no common server
    has_server: bool = True  # somebody in the middle receives every update, may keep data and sends the model to all
    sends_rows: bool = False  # what it broadcasts has a row for every client; those of one server may differ, too
    partial: bool = False  # no model of a server is one for all: central metrics are the mean over clients' own
    sums_per_round: int = 1  # that one client may be in: so often the server's half of a transform is run
    sums_differ: bool = False  # one sum may have fewer clients than another, though nobody is lost
    selects_by_time: bool = False  # who is in which sum depends on how long clients take
    tells: str | None = None  # what clients say beside their updates, which no noise on these covers
    cautions: tuple[str, ...] = ()  # what whoever reads the figures must know: noise of which no epsilon is known, say
    refuses: Mapping[Part, str] = field(default_factory=dict)  # what cannot go with it: why, and what to do instead


OWN_MODELS = RoundTraits(per_client=True, has_server=False, sends_rows=True)
