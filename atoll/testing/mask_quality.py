"""Are masks as good as one believes? Seeds that keep their bits, values over the whole range, keys for one round."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, combinations, count

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import chi2
from torch import Tensor

from atoll import rng, tree
from atoll.core import Message
from atoll.errors import ConfigError
from atoll.protocols import SecureAggregation, Transcript, run_protocol
from atoll.testing.assertions import need
from atoll.testing.variants import with_setting
from atoll.tree import Tree

_LEAST_SEED_BITS = 128
_PREFIX = 8  # values that tell two masks apart
_RANDOM_SEEDS = 1 << 12
_VALUES, _SEEDS = 1 << 10, 64  # of each mask, and masks, that are counted
_BINS, _SMALL_BITS = 64, 4  # few enough bits that every single value is counted
_LEAST_P = 1e-9  # draws are the same in every run: one that passes always does
_LEAST_KEY_BYTES = 16
_PAIR_SEEDS = 1 << 18  # so many folded to 32 bits have 8 pairs alike on average: none with a probability of 3e-4
_SESSION, _PUBLIC = bytes(16), bytes(range(32))
_KEY = rng.key("protocol", "masks")


def seeds_keep_their_bits(protocol: SecureAggregation, held: Mapping[int, Tree]) -> str | None:
    """No two of many seeds give one mask: all that differ in one or two bits, and random ones.

    A seed that is folded or cut to 32 bits, as Flower's SecAgg+ does it, leaves a server 2^32 masks to try.

    Two draws that give one mask, or one pair's seed, are found by chance up to about 36 bits. What folds to more than
    that, and spreads the rest by a hash, looks like 128 bits to everybody who does not read it.
    """
    what = f"mask seeds keep at least {_LEAST_SEED_BITS} bits"
    if protocol.seed_bytes == 0:
        return None
    bits = 8 * protocol.seed_bytes
    need(bits >= _LEAST_SEED_BITS, what, f"seeds of {bits} bits", f"{_LEAST_SEED_BITS} or more", "a short seed")
    masks: dict[bytes, bytes] = {}
    for seed in _seeds(protocol.seed_bytes):
        mask = protocol.mask(seed, _PREFIX, len(held)).numpy().tobytes()
        other = masks.setdefault(mask, seed)
        differ = (int.from_bytes(seed, "little") ^ int.from_bytes(other, "little")).bit_count()
        need(other == seed, what, f"one mask of two seeds ({differ} bits differ)", "another mask", "a folded seed")
    return what


def pairs_agree_in_secret(protocol: SecureAggregation, held: Mapping[int, Tree]) -> str | None:
    """The seed of a mask between two clients follows from their secret, in all of its bits, and not from public data.

    That clients use `pair_seed` as it is, and that a private mask's seed is drawn and not made, is not seen from here:
    read for it. A mask that has nothing but public data in it is: see `hides_vectors`.
    """
    what = f"seeds of pairs come from their secret, and keep at least {_LEAST_SEED_BITS} bits"
    if protocol.pair_seed(_Agreed(_digest(0, 32)), _PUBLIC, _SESSION, 1, 4) is None:
        return None
    size = protocol.seed_bytes
    need(size > 0, what, "no `seed_bytes`", "the bytes of a seed", "a pair's seed in a protocol that declares none")
    seeds: dict[bytes, bytes] = {}
    random = (_digest(i, 32) for i in count(_RANDOM_SEEDS))
    for secret, _ in zip(chain(_seeds(32), random), range(_PAIR_SEEDS), strict=False):
        seed = protocol.pair_seed(_Agreed(secret), _PUBLIC, _SESSION, 1, 4)
        need(seed is not None and len(seed) == size, what, seed, f"{size} bytes", "another length than is declared")
        other = seeds.setdefault(seed or b"", secret)
        need(other == secret, what, "one seed of two secrets", "another seed", "a folded secret, or public data alone")
    return what


def masks_are_uniform(protocol: SecureAggregation, held: Mapping[int, Tree]) -> str | None:
    """Every value below the modulus is as likely as any other, the greatest too; and what the server sees is so."""
    if not protocol.seed_bytes:
        return None
    for bits in (protocol.bits, _SMALL_BITS):
        variant = with_setting(protocol, bits=bits)
        modulus = variant.modulus(len(held))
        draws = [_digest(i, variant.seed_bytes) for i in range(_SEEDS)]
        values = torch.cat([variant.mask(seed, _VALUES, len(held)) for seed in draws])
        _need_uniform(values, modulus, f"masks of {bits} bits are uniform")
        if variant.vector_kind:
            for id, values in _seen(variant, list(held)).items():
                _need_uniform(values, modulus, f"what the server sees of client {id} is uniform ({bits} bits)")
    return "masks are uniform over the whole range"


def keys_are_fresh(protocol: SecureAggregation, held: Mapping[int, Tree]) -> str:
    """What clients send in two rounds has no key, box or mask in common, drawn from the system and from seeds.

    The sum that clients decrypt would be common to both, so that what they hold in the second round is other by one.
    """
    modulus, draws = protocol.modulus(len(held)), 1 << protocol.bits
    other = {id: {**x, "vector": (x["vector"] + 1) % draws} for id, x in held.items()}
    for source, pair in _two_rounds(protocol).items():
        runs = zip(pair, (held, other), strict=True)
        one, two = (run_protocol(variant, own, key)[1] for (variant, key), own in runs)
        both = set(byte_rows(one.up)) & set(byte_rows(two.up))
        cause = "a key made once, or drawn from a fixed seed"
        need(not both, f"no key is used in two rounds ({source})", f"{len(both)} in both", "none", cause)
        for (id, a), (_, b) in zip(_masked(protocol, one), _masked(protocol, two), strict=True):
            moved = other[id]["vector"] - held[id]["vector"]
            same = float(((b - a - moved) % modulus == 0).float().mean())
            need(same < 0.9, f"no mask is used in two rounds ({source})", f"{same:.0%} equal", "chance", cause)
    return "no key is used in two rounds"


def _two_rounds(protocol: SecureAggregation) -> dict[str, list[tuple[SecureAggregation, Tensor]]]:
    """Who runs twice, with which keys. One that is for tests alone, as by short keys, draws from seeds alone."""
    seeds = {"from a seed": [(protocol, rng.fold_name(_KEY, name)) for name in ("one", "two")]}
    try:
        secure = with_setting(protocol, insecure_seed=False)
    except ConfigError:
        return seeds
    return {"from the system": [(secure, _KEY)] * 2, **seeds}


def byte_rows(steps: list[dict[int, Message]]) -> Iterator[bytes]:
    """All that is as long as a key and is bytes, but for what the server gave everybody (the session)."""
    for step in steps:
        for message in step.values():
            for path, x in tree.paths(message.body):
                if x.dtype == torch.uint8 and x.dim() and x.shape[-1] >= _LEAST_KEY_BYTES and path != "session":
                    yield from (row.tobytes() for row in x.reshape(-1, x.shape[-1]).numpy())


@dataclass(frozen=True)
class _Agreed:
    """A key that has agreed on this secret with everybody; what is public of it is always the same."""

    secret: bytes
    public: bytes = _PUBLIC

    def secret_with(self, other: bytes) -> bytes:
        return self.secret


def _seeds(size: int) -> Iterator[bytes]:
    base, bits = int.from_bytes(_digest(0, size), "little"), range(8 * size)
    yield base.to_bytes(size, "little")
    yield from ((base ^ 1 << i).to_bytes(size, "little") for i in bits)
    yield from ((base ^ 1 << i ^ 1 << j).to_bytes(size, "little") for i, j in combinations(bits, 2))
    yield from (_digest(i, size) for i in range(1, _RANDOM_SEEDS))


def _digest(i: int, size: int) -> bytes:
    return hashlib.shake_256(i.to_bytes(8, "little")).digest(size)


def _need_uniform(values: Tensor, modulus: int, what: str) -> None:
    inside = bool(((values >= 0) & (values < modulus)).all())
    need(inside, what, f"{int(values.min())} to {int(values.max())}", f"0 to {modulus - 1}", "no reduction")
    bins = min(modulus, _BINS)
    high = (values.double() / modulus * bins).long().clamp(max=bins - 1).numpy()
    low = (values % bins).numpy() if modulus % bins == 0 or modulus > bins**3 else high
    for name, counted in (("high", high), ("low", low)):
        p = _p_value(np.bincount(counted, minlength=bins))
        cause = "a draw that leaves values out, such as randint(0, top - 1)"
        need(p > _LEAST_P, what, f"chi-square of the {name} part: p = {p:.2g}", f"above {_LEAST_P:g}", cause)


def _p_value(counts: NDArray[np.int64]) -> float:
    expected = counts.sum() / len(counts)
    return float(chi2.sf(((counts - expected) ** 2 / expected).sum(), len(counts) - 1))


def _seen(protocol: SecureAggregation, ids: list[int]) -> dict[int, Tensor]:
    """What the server sees of each client, all of which hold zeros."""
    held = {id: {"vector": torch.zeros(_VALUES * 4, dtype=torch.int64)} for id in ids}
    _, transcript = run_protocol(protocol, held, _KEY)
    seen = {
        id: protocol.masked(m) for step in transcript.up for id, m in step.items() if m.kind == protocol.vector_kind
    }
    missing = [id for id in ids if seen.get(id) is None]
    need(not missing, "says what the server sees of a vector", f"nothing of {missing}", "a tensor", "no `masked`")
    return {id: x for id, x in seen.items() if x is not None}


def _masked(protocol: SecureAggregation, transcript: Transcript) -> list[tuple[int, Tensor]]:
    masked = [(id, protocol.masked(message)) for step in transcript.up for id, message in step.items()]
    return [(id, x) for id, x in masked if x is not None]
