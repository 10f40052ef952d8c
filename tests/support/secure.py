"""Secure aggregation in tests: vectors for clients, the plain sum, and runs that lose some of them."""

from collections.abc import Collection, Mapping
from typing import Any

import torch

from atoll import rng
from atoll.errors import ProtocolError
from atoll.protocols import (
    AdditiveSharing,
    CkksAggregation,
    LightSecAgg,
    PaillierAggregation,
    SecAgg,
    SecAggPlus,
    SecureAggregation,
    SecureShuffle,
    Transcript,
    run_protocol,
)
from atoll.tree import Tree

KEY = rng.key("secure")
PROTOCOLS: dict[str, SecureAggregation] = {
    "additive": AdditiveSharing(insecure_seed=True),
    "additive, compact": AdditiveSharing(splits=3, compact=True, insecure_seed=True),
    "secagg": SecAgg(insecure_seed=True),
    "secagg, active": SecAgg(active_server=True, insecure_seed=True),
    "secagg_plus": SecAggPlus(insecure_seed=True),
    "light_secagg": LightSecAgg(insecure_seed=True),
    "light_secagg, 20 bits": LightSecAgg(bits=20, insecure_seed=True),
}


def vectors(protocol: SecureAggregation, clients: int, size: int = 5) -> dict[int, Tree]:
    """Residues of so many clients, whose ids have gaps."""
    draws = torch.Generator().manual_seed(clients)
    return {
        7 * i + 2: {"vector": torch.randint(0, 1 << protocol.bits, (size,), generator=draws)} for i in range(clients)
    }


def plain_sum(protocol: SecureAggregation, own: Mapping[int, Tree], ids: Collection[int]) -> list[int]:
    """In Python's whole numbers."""
    columns = zip(*(own[id]["vector"].tolist() for id in ids), strict=True)
    return [sum(column) % (1 << protocol.bits) for column in columns]


def lose(
    protocol: SecureAggregation, own: Mapping[int, Tree], gone: Mapping[int, int], **options: Any
) -> Tree | ProtocolError:
    """The result of a run that loses these clients at these steps, or why there is none."""
    try:
        return run_protocol(protocol, own, KEY, lambda step, id: gone.get(id) == step, **options)[0]
    except ProtocolError as e:
        return e


def survivors(protocol: SecureAggregation, own: Mapping[int, Tree], gone: Mapping[int, int]) -> list[int]:
    """Whose vectors arrive."""
    arrives = protocol.answers().index(protocol.vector_kind)
    return sorted(id for id in own if gone.get(id, arrives + 1) > arrives)


OTHERS: dict[str, SecureAggregation] = {
    "paillier": PaillierAggregation(bits=16, key_bits=256, threshold=3, insecure_seed=True),
    "paillier, holder": PaillierAggregation(
        bits=16, key_bits=256, threshold=3, key_holders="holder", insecure_seed=True
    ),
    "paillier, shared": PaillierAggregation(
        bits=16, key_bits=256, threshold=3, key_holders="shared", insecure_seed=True
    ),
    "ckks": CkksAggregation(bits=16, threshold=3),
    "shuffle": SecureShuffle(threshold=3, insecure_seed=True),
}  # whose steps depend on who is lost: the next one deals or decrypts


def lose_from(
    protocol: SecureAggregation, own: Mapping[int, Tree], gone: Mapping[int, int]
) -> tuple[Tree | None, Transcript]:
    """The result of a run that loses these clients when they are next asked from these steps on; None for no sum."""
    log = Transcript()
    try:
        result, _ = run_protocol(protocol, own, KEY, lambda step, id: step >= gone.get(id, step + 1), log=log)
    except ProtocolError:
        return None, log
    return result, log
