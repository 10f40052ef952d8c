"""LightSecAgg: a field that holds the sum, masks that come back in one shot, and shares that say nothing."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from atoll.core import Message
from atoll.errors import ConfigError, ProtocolError
from atoll.protocols import LightSecAgg, run_protocol
from atoll.testing.interception import Intercepted
from atoll.tree import Tree
from tests.support.secure import KEY, plain_sum, vectors

PROTOCOL = LightSecAgg(insecure_seed=True)


@pytest.mark.parametrize(
    ("bits", "clients", "exponent"), [(24, 100, 31), (25, 100, 61), (32, 1000, 61), (29, 4, 31), (29, 5, 61)]
)
def test_the_field_is_the_least_that_holds_the_sum(bits: int, clients: int, exponent: int) -> None:
    protocol = LightSecAgg(bits=bits)
    assert protocol.modulus(clients) == 2**exponent - 1
    assert clients * (2**bits - 1) < protocol.modulus(clients)


def test_a_sum_that_no_field_holds_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Use at most 54 bits for so many clients"):
        LightSecAgg(bits=56).server(list(range(100)), KEY)
    assert LightSecAgg(bits=54).modulus(100) == 2**61 - 1


@pytest.mark.parametrize(("bits", "clients"), [(29, 4), (20, 5), (32, 5), (58, 5)])
def test_the_greatest_sum_comes_out_right(bits: int, clients: int) -> None:
    protocol = LightSecAgg(bits=bits)
    own = {i: {"vector": torch.full((7,), 2**bits - 1)} for i in range(clients)}
    result, _ = run_protocol(protocol, own, KEY)
    assert result["sum"].tolist() == [(2**bits - clients) % 2**bits] * 7


@pytest.mark.parametrize(
    ("threshold", "colluding", "parts"), [(0.5, 0.0, 6), (2 / 3, 0.5, 2), (9, 0.2, 7), (10, 0.9, 1)]
)
def test_masks_are_cut_into_pieces_beside_the_noise(threshold: float, colluding: float, parts: int) -> None:
    protocol = LightSecAgg(threshold=threshold, colluding=colluding, insecure_seed=True)
    coding = protocol.coding(10)
    assert coding.parts == parts
    for size in (1, 5, 13, 14):
        own = vectors(protocol, 10, size)
        result, log = run_protocol(protocol, own, KEY)
        assert result["sum"].tolist() == plain_sum(protocol, own, list(own))
        assert len(log.up[3][2].body["share"]) == -(-size // parts)


def test_any_pieces_of_the_sums_of_shares_recover_the_masks() -> None:
    coding = PROTOCOL.coding(9)
    masks = [coding.field.mask(bytes([i]) * 32, 20) for i in range(9)]
    shares = sum(coding.encode(mask, bytes([40 + i]) * 32, 9) % coding.field.prime for i, mask in enumerate(masks))
    total = np.sum([m.astype(object) for m in masks], axis=0) % coding.field.prime
    reduced = coding.field.reduce(np.asarray(shares))
    for first in range(9 - coding.pieces + 1):
        holders = range(first, first + coding.pieces)
        assert coding.decode(reduced[list(holders)], list(holders), 20).tolist() == total.tolist()


def test_the_mask_is_not_readable_in_its_shares() -> None:
    """With other noise, every share of the same mask is another one, down to each number."""
    coding = PROTOCOL.coding(6)
    mask = coding.field.mask(bytes(32), 40)
    one, two = (coding.encode(mask, bytes([i]) * 32, 6) for i in (1, 2))
    assert not (one == two).any()


def test_a_client_that_is_told_of_other_survivors_is_noticed() -> None:
    def down(step: int, id: int, message: Message) -> Message:
        if message.kind != "survivors" or id != 9:
            return message
        return message._replace(body={**message.body, "ids": message.body["ids"][:-1]})

    with pytest.raises(ProtocolError, match="it added up shares of others than those left"):
        run_protocol(Intercepted(PROTOCOL, down=down), vectors(PROTOCOL, 6), KEY)


def test_nothing_is_added_up_below_the_threshold() -> None:
    def down(step: int, id: int, message: Message) -> Message:
        if message.kind != "survivors" or id != 9:
            return message
        return message._replace(body={**message.body, "ids": message.body["ids"][:4]})

    with pytest.raises(ProtocolError, match="client 9: 4 clients are said to be left, and the threshold is 5"):
        run_protocol(Intercepted(PROTOCOL, down=down), vectors(PROTOCOL, 6), KEY)


def told(kind: str, to: int, change: Callable[[Tree], Tree]) -> Tree:
    """The result of a round in which one client is told something else."""

    def down(step: int, id: int, message: Message) -> Message:
        if message.kind != kind or id != to:
            return message
        return message._replace(body={**message.body, **change(message.body)})

    return run_protocol(Intercepted(PROTOCOL, down=down), vectors(PROTOCOL, 6), KEY)[0]


def test_keys_and_boxes_of_too_few_are_refused() -> None:
    with pytest.raises(ProtocolError, match="client 9: 4 clients share keys, and the threshold is 5"):
        told("peers", 9, lambda body: {"ids": body["ids"][:4], "public": body["public"][:4]})
    with pytest.raises(ProtocolError, match="client 9: 4 clients sent shares, and the threshold is 5"):
        told("boxes", 9, lambda body: {"ids": body["ids"][:4], "boxes": body["boxes"][:3]})


def test_one_key_under_two_names_or_more_than_were_announced_are_refused() -> None:
    def twice(body: Tree) -> Tree:
        return {"public": body["public"][[0, 1, 2, 3, 4, 4]]}

    with pytest.raises(ProtocolError, match="6 clients and 5 keys of theirs"):
        told("peers", 9, twice)
    with pytest.raises(ProtocolError, match="6 clients and 6 keys of theirs"):
        told("start", 9, lambda body: {"clients": torch.tensor(5)})


def test_vectors_of_two_lengths_have_no_sum() -> None:
    own = vectors(PROTOCOL, 6)
    own[9] = {"vector": torch.zeros(50, dtype=torch.int64)}
    with pytest.raises(ProtocolError, match=r"server: boxes of \d+ to \d+ bytes"):
        run_protocol(PROTOCOL, own, KEY)


def test_what_the_server_learns_beyond_the_modulus_is_said() -> None:
    assert "how often it wraps around" in PROTOCOL.security(100).server_learns
    assert PROTOCOL.modulus(100) != 2**PROTOCOL.bits
    assert "Up to 50 of 100 clients" in PROTOCOL.security(100).assumes


@pytest.mark.parametrize(("threshold", "colluding"), [(0, 0.5), (0.5, 1.0), (0.5, -0.1)])
def test_parameters_that_cannot_be_are_refused(threshold: float, colluding: float) -> None:
    with pytest.raises(ConfigError, match=r"secure\.threshold, secure\.protocol\.colluding"):
        LightSecAgg(threshold=threshold, colluding=colluding)
