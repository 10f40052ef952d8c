"""Does a secure aggregation give the sum it promises, of those it promises, in arithmetic that holds it?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations

import torch

from atoll import rng
from atoll.errors import ConfigError, ConformanceError, ProtocolError
from atoll.protocols import SecureAggregation, run_protocol
from atoll.testing.assertions import need
from atoll.testing.mask_quality import keys_are_fresh, masks_are_uniform, pairs_agree_in_secret, seeds_keep_their_bits
from atoll.testing.secrecy import hides_vectors
from atoll.testing.tampering import (
    refuses_changed_bytes,
    refuses_malformed_messages,
    refuses_replays,
    reveals_nothing_early,
)
from atoll.tree import Tree

_KEY = rng.key("protocol", "sums")
_COHORTS = (2, 10, 100, 1000)
_CAUSE = "a mask that is left, or arithmetic that is too narrow"


def is_declared(protocol: SecureAggregation, held: Mapping[int, Tree]) -> str:
    """It draws from a seed for these checks, says what it promises, and names its messages."""
    need(
        protocol.insecure_seed,
        "is checked with insecure_seed = True",
        "False",
        "True",
        "a protocol as users have it; the kit needs the same draws twice, and tries the system's by itself",
    )
    security = protocol.security(len(held))
    need(0 <= security.level <= 3, "states FedEval's security level", security.level, "0 to 3", "another scale")
    words = (security.server_learns, security.clients_learn, security.assumes)
    need(all(words), "says who learns what, and whom one trusts", words, "three sentences", "an empty one")
    if protocol.answers():
        _, transcript = run_protocol(protocol, held, _KEY)
        kinds = tuple(next(iter({m.kind for m in step.values()}), "") for step in transcript.up)
        need(kinds == protocol.answers(), "names its messages", kinds, protocol.answers(), "`answers` left behind")
    return "says what it promises"


def arithmetic_holds_the_sum(protocol: SecureAggregation, held: Mapping[int, Tree]) -> str:
    """The modulus is a multiple of 2^bits, or above the sum of all residues; or so many clients are refused."""
    for clients in _COHORTS:
        try:
            modulus = protocol.modulus(clients)
        except ConfigError:
            continue
        most = clients * ((1 << protocol.bits) - 1)
        what = f"range x cohort fits the modulus ({protocol.bits} bits, {clients} clients)"
        fits = modulus % (1 << protocol.bits) == 0 or most < modulus
        need(fits, what, f"modulus {modulus}", f"above {most}", "a prime that was chosen for one client")
    return "range x cohort fits the modulus"


def sum_is_plain(protocol: SecureAggregation, held: Mapping[int, Tree]) -> str:
    """The sum of what clients hold modulo 2^bits, over the wire; of zeros, and of the greatest numbers."""
    size = len(next(iter(held.values()))["vector"])
    for name, vectors in (
        ("what clients hold", {id: x["vector"] for id, x in held.items()}),
        ("zeros", {id: torch.zeros(size, dtype=torch.int64) for id in held}),
        ("the greatest numbers", {id: torch.full((size,), (1 << protocol.bits) - 1) for id in held}),
    ):
        own = {id: {**held[id], "vector": x} for id, x in vectors.items()}
        result, _ = run_protocol(protocol, own, _KEY, over_wire=True)
        _need_sum(protocol, own, result, sorted(held), f"the sum of {name} equals the plain sum")
    return "the sum equals the plain sum"


def keeps_its_promise_to_dropouts(protocol: SecureAggregation, held: Mapping[int, Tree]) -> str | None:
    """Whoever is lost, at whatever step: the sum is that of those whose vectors arrived, down to `least` clients."""
    if not protocol.vector_kind:
        return None
    arrives = protocol.answers().index(protocol.vector_kind)
    spare = len(held) - protocol.least(len(held))
    for step in range(len(protocol.answers())):
        for gone in combinations(held, spare):
            result = _run(protocol, held, step, set(gone))
            left = sorted(set(held) - set(gone)) if step <= arrives else sorted(held)
            what = f"{len(gone)} of {len(held)} clients lost at step {step + 1}"
            need(isinstance(result, dict), what, result, "a sum", "a threshold that is too high")
            if isinstance(result, dict):
                _need_sum(protocol, held, result, left, what)
        for gone in combinations(held, spare + 1):
            result = _run(protocol, held, step, set(gone))
            what = f"below the threshold ({len(gone)} of {len(held)} clients lost at step {step + 1}) a round ends"
            need(isinstance(result, ProtocolError), what, "a result", "a ProtocolError", "a threshold not enforced")
    return "the sum is that of who is promised to be in it"


def _run(protocol: SecureAggregation, held: Mapping[int, Tree], step: int, gone: set[int]) -> Tree | ProtocolError:
    try:
        return run_protocol(protocol, held, _KEY, lambda at, id: at == step and id in gone)[0]
    except ProtocolError as e:
        return e
    except Exception as e:  # a stranger's protocol may raise anything
        raise ConformanceError(
            f"{len(gone)} clients lost at step {step + 1}: found {type(e).__name__}: {e}; expected a sum or a "
            "ProtocolError. Usual cause: an inbox that is taken to hold everybody."
        ) from e


def _need_sum(protocol: SecureAggregation, held: Mapping[int, Tree], result: Tree, ids: list[int], what: str) -> None:
    need(result["ids"].tolist() == ids, what, f"ids {result['ids'].tolist()}", ids, "a list of who was asked")
    total = torch.stack([held[id]["vector"] for id in ids]).sum(0) % (1 << protocol.bits)
    wrong = int((result["sum"] != total).sum())
    need(wrong == 0, what, f"{wrong} of {len(total)} numbers differ", "none", _CAUSE)


SECURE_CHECKS: tuple[Callable[[SecureAggregation, Mapping[int, Tree]], str | None], ...] = (
    is_declared,
    arithmetic_holds_the_sum,
    hides_vectors,
    seeds_keep_their_bits,
    pairs_agree_in_secret,
    masks_are_uniform,
    sum_is_plain,
    keeps_its_promise_to_dropouts,
    keys_are_fresh,
    refuses_malformed_messages,
    refuses_changed_bytes,
    refuses_replays,
    reveals_nothing_early,
)


def vector(protocol: SecureAggregation, i: int) -> Tree:
    """What client i holds, unless the caller says it: a few residues, the greatest and 0 among them."""
    drawn = rng.uniform(
        rng.key("vector", i),
        (62,),
    ).double() * (1 << protocol.bits)
    top = (1 << protocol.bits) - 1
    return {"vector": torch.cat([torch.tensor([0, top]), drawn.long().clamp(0, top)])}
