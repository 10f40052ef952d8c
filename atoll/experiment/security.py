"""FedEval's security level of a run, with the reason: what the server saw, and what each client saw.

Level 0: all data; 1: every client's update; 2: only the aggregate; 3: nothing (Chai et al., FedEval, table 1).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol

from atoll import tree
from atoll.core import Algorithm, Chain, Round, Spec, resolve, transform_name
from atoll.experiment.experiment import Experiment, SecureTable
from atoll.experiment.secure_setup import INSECURE, make_protocol
from atoll.tree import Tree

_MODELS = "the models that the server sends"


class BuiltRun(Protocol):
    """What of a set-up decides who sees what."""

    @property
    def experiment(self) -> Experiment: ...
    @property
    def algorithm(self) -> Algorithm: ...
    @property
    def round(self) -> Round: ...
    @property
    def chain(self) -> Chain: ...
    def spec(self) -> Spec: ...
    def update_like(self) -> Tree: ...


@dataclass(frozen=True)
class SecurityStatement:
    """For run.json."""

    level: int
    reason: str
    server: str  # what it sees
    clients: str  # what each sees of others
    assumes: str = ""

    def written(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value != ""}


def security_of(setup: BuiltRun) -> SecurityStatement:
    """Of any run."""
    traits, name = setup.algorithm.traits(), setup.experiment.algorithm["name"]
    if traits.pooled:
        return SecurityStatement(0, f"{name} gathers all data in one place", "all data", "nothing")
    if not tree.leaves(setup.update_like()):
        return SecurityStatement(3, f"with {name} clients send nothing", "nothing", "nothing")
    if setup.round.traits().per_client:
        seen = "the models of its neighbours, as they are"
        return SecurityStatement(1, "there is no server, and neighbours see each other's models", "there is none", seen)
    if not setup.round.traits().has_server:
        seen = "partial sums of updates, and in some plans single ones, as they are"
        return SecurityStatement(
            1, "there is no server, and clients see each other's partial sums", "there is none", seen
        )
    return _of_protocol(setup) if setup.experiment.secure else _of_updates(setup)


def _of_updates(setup: BuiltRun) -> SecurityStatement:
    bound = resolve(setup.chain, 0, []).bind(setup.spec())[0]
    local = [transform_name(m) for m in bound.mechanisms() if not m.has_server_side()]
    noise = f", each with the noise of {' and '.join(local)}" if local else ""
    reason = f"the server sees every client's update{noise}"
    if any(transform_name(t) == "secure_sum" for t in setup.chain.transforms):
        reason += "; secure_sum computes what a protocol would, but none was used: [secure] names one"
    return SecurityStatement(1, reason, f"every client's update{noise}, and who sent it", _MODELS)


def _of_protocol(setup: BuiltRun) -> SecurityStatement:
    table = setup.experiment.secure
    assert table is not None
    clients = setup.round.parties(table.level or 0, setup.spec().cohort)
    assert clients is not None
    if table.level is not None:
        return _of_edges(setup, table, clients)
    name, said = table.protocol["name"], make_protocol(table, clients).security(clients)
    bound = resolve(setup.chain, 0, []).bind(setup.spec())[0]
    local = [transform_name(m) for m in bound.mechanisms() if not m.has_server_side()]
    shared = [transform_name(m) for m in bound.mechanisms() if m.has_server_side()]
    noise = f". Every vector has the noise of {' and '.join(local)}" if local else ""
    if shared:
        noise = f", with the noise of {' and '.join(shared)} (drawn once here for the shares of all)"
    learns = _clause(said.server_learns)
    reason = f"{name}: the server learns {learns}"
    if setup.round.traits().sums_differ:  # edges are the protocol's servers
        learns = f"sums over the clients of edges, each of which learns {learns}, of its own"
        reason = (
            f"{name}: every edge learns {_clause(said.server_learns)}, of its own clients; those above, sums of edges"
        )
    if table.mode == "cost":
        reason += " (mode = 'cost': so it would be; no message was sent)"
    level = said.level
    if table.insecure_seed:
        level, reason = min(1, level), INSECURE
    clients_see = f"{_MODELS}; {_clause(said.clients_learn)}"
    return SecurityStatement(level, reason, f"{learns}{noise}", clients_see, said.assumes)


def _of_edges(setup: BuiltRun, table: SecureTable, parties: int) -> SecurityStatement:
    """Edges are servers, too: what one of them sees of a client is seen."""
    said, seen = make_protocol(table, parties).security(parties), _of_updates(setup)
    above = f"between edges of level {table.level} and above, {table.protocol['name']}: {_clause(said.server_learns)}"
    reason = f"every edge sees its own clients' updates; {above}, where edges are the clients"
    if table.insecure_seed:
        reason = INSECURE
    sees = f"{_clause(said.server_learns)}, of edges; an edge sees of its own clients {seen.server}"
    return SecurityStatement(1, reason, sees, seen.clients, said.assumes)


def _clause(sentence: str) -> str:
    """A sentence within another.

    >>> _clause("The sum.")
    'the sum'
    """
    return f"{sentence[:1].lower()}{sentence[1:]}".rstrip(".")
