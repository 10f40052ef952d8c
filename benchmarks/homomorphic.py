"""Processor time and bytes of homomorphic sums, a number: Paillier with and without packing and short exponents, CKKS.

    python benchmarks/homomorphic.py [--numbers 44426] [--clients 100] [--key-bits 2048]

44,426 numbers are a LeNet, of 32 bits. Ways that are slow are measured on fewer numbers and said so. A sum is decrypted
once in a round (by two clients, each alone), not by every client. With guard bits a sum of any residues is right modulo
2^32; in a run sums are known to fit, and there are none. "times float32" is the upload against 4 bytes a number.
"""

from __future__ import annotations

import argparse
import secrets
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from atoll.protocols import CkksAggregation, PaillierAggregation
from atoll.protocols.homomorphic import HomomorphicAggregation
from atoll.tree import Tree
from atoll.wire import wire_bytes

UPLOADS = 4  # that are added and timed


def timed(work: Callable[[], Tree]) -> tuple[Tree, float]:
    began = time.process_time()
    made = work()
    return made, time.process_time() - began


def row(name: str, protocol: HomomorphicAggregation, numbers: int, clients: int) -> str:
    vector = torch.randint(0, (1 << protocol.bits - 1) // UPLOADS, (numbers,))
    public, private = protocol.draw_keys(clients, secrets.token_bytes)
    upload, encrypting = timed(lambda: protocol.encrypt(public, vector, clients, secrets.token_bytes))
    others = [protocol.encrypt(public, vector, clients, secrets.token_bytes) for _ in range(UPLOADS - 1)]
    total, adding = timed(lambda: protocol.add(public, dict(enumerate([upload, *others])), numbers, clients))
    opened, opening = timed(lambda: {"sum": protocol.decrypt(public, private, total, numbers, clients)})
    assert torch.equal(opened["sum"], vector * UPLOADS & (1 << protocol.bits) - 1)
    size = wire_bytes(upload) / numbers
    micro = [f"{1e6 * seconds / numbers:,.2f}" for seconds in (encrypting, adding / UPLOADS, opening)]
    return f"| {name} | {numbers:,} | {' | '.join(micro)} | {size:,.1f} | {size / 4:,.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numbers", type=int, default=44_426)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--key-bits", type=int, default=2048)
    given = parser.parse_args()
    torch.manual_seed(0)
    guarded = PaillierAggregation(key_bits=given.key_bits)
    paillier = guarded.for_bounded_sums()
    print("| way | numbers | encrypt µs | add µs | decrypt µs | bytes | times float32 |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    ways = {
        "packed with guard bits": (guarded, 1),
        "packed": (paillier, 1),
        "packed, three primes": (replace(paillier, primes=3), 1),
        "packed, long exponents": (replace(paillier, short_exponents=False), 8),
        "one a plaintext": (replace(paillier, packed=False), 100),
        "one a plaintext, long exponents": (replace(paillier, packed=False, short_exponents=False), 400),
    }
    for name, (protocol, share) in ways.items():
        print(row(f"paillier, {name}", protocol, max(1, given.numbers // share), given.clients), flush=True)
    shared = replace(guarded, key_holders="shared")
    width = shared._slots(given.clients).width
    print(
        f"paillier with a shared key: {width} bits a slot, {shared._slots(given.clients).per_integer} numbers in each"
    )
    most = max(32, 46 - (given.clients - 1).bit_length())  # bits of which CKKS keeps a sum of so many
    for bits in (32, min(39, most)):
        ckks = CkksAggregation(bits=bits)
        name = f"ckks, N = {ckks.parameters(given.clients).degree:,} ({bits} bits)"
        print(row(name, ckks, given.numbers, given.clients), flush=True)


if __name__ == "__main__":
    main()
