"""Aggregation under a homomorphic key: who drops out when, what is changed on its way, and who sees what."""

import itertools
import secrets
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll import rng
from atoll.core import Message
from atoll.errors import ProtocolError
from atoll.protocols import CkksAggregation, Transcript, run_protocol
from atoll.protocols.homomorphic import HomomorphicAggregation, KeyHolding
from atoll.protocols.in_process import Drops
from atoll.protocols.paillier_aggregation import PaillierAggregation
from atoll.testing import check_protocol
from atoll.testing.interception import Change, Intercepted
from atoll.tree import Tree, paths
from tests.support.tampering import at
from tests.support.vectors import plain_sum, vectors

IDS, NUMBERS, BITS = (2, 3, 7, 40), 20, 16
KEY = rng.key("homomorphic")
HOLDINGS: tuple[KeyHolding, ...] = ("group", "holder", "shared")
holdings = pytest.mark.parametrize("key", HOLDINGS)
UPLOAD = 2  # the step in which vectors arrive, where nobody drops out before


def small(key: KeyHolding, **more: object) -> PaillierAggregation:
    return PaillierAggregation(bits=BITS, key_holders=key, key_bits=256, insecure_seed=True, **more)  # type: ignore[arg-type]


def run(protocol: HomomorphicAggregation, own: dict[int, Tree], **tampering: Change) -> tuple[Tree, Transcript]:
    return run_protocol(Intercepted(protocol, **tampering), own, KEY)


def outcome(protocol: HomomorphicAggregation, own: dict[int, Tree], drops: Drops) -> Tree | None:
    """The server's result, or None where the round ended without one."""
    try:
        return run_protocol(protocol, own, KEY, drops)[0]
    except ProtocolError:
        return None


def all_bytes(transcript: Transcript) -> bytes:
    """All that passes through the server."""
    messages = [m for steps in (transcript.down, transcript.up) for step in steps for m in step.values()]
    return b"|".join(x.numpy().tobytes() for m in messages for _, x in paths(m.body))


@holdings
def test_it_is_a_protocol(key: KeyHolding) -> None:
    assert "pure, and keyed" in check_protocol(small(key), lambda i: {"vector": torch.arange(NUMBERS) + i})


@holdings
@given(
    bits=st.integers(2, 62),
    numbers=st.integers(1, 40),
    ids=st.lists(st.integers(0, 10**6), min_size=2, max_size=6, unique=True),
    seed=st.integers(0, 99),
)
def test_the_sum_is_the_plain_sum_modulo_two_to_the_bits(
    key: KeyHolding, bits: int, numbers: int, ids: list[int], seed: int
) -> None:
    own = vectors(ids, numbers, bits, seed)
    result, _ = run_protocol(replace(small(key), bits=bits), own, KEY)
    assert result["sum"].tolist() == plain_sum(own, ids, bits).tolist()
    assert result["ids"].tolist() == sorted(ids)


@holdings
@pytest.mark.parametrize("step", range(5))
def test_whoever_drops_out_the_sum_is_that_of_who_is_promised(key: KeyHolding, step: int) -> None:
    """Every subset at every step: a right sum wherever the table in homomorphic.py promises one, else an error."""
    own, protocol = vectors(IDS, NUMBERS, BITS), small(key)
    for gone in itertools.chain(*(itertools.combinations(IDS, n) for n in range(len(IDS) + 1))):
        stayed = [id for id in IDS if id not in gone]
        in_sum = stayed if step <= UPLOAD else list(IDS)
        dealer_gone = min(IDS) in gone
        if key == "group":
            possible = len(in_sum) >= 2 and bool(stayed)
        elif key == "holder":
            possible = len(in_sum) >= 2 and not (dealer_gone and step >= UPLOAD)
        else:
            possible = len(in_sum) >= 2 and not (dealer_gone and step >= UPLOAD) and (step <= UPLOAD or not gone)
        result = outcome(protocol, own, lambda at, id, gone=gone: at >= step and id in gone)
        if result is None:
            assert not possible, (step, gone)
            continue
        assert result["ids"].tolist() == in_sum, (step, gone)
        assert result["sum"].tolist() == plain_sum(own, in_sum, BITS).tolist()


def test_where_the_dealer_is_gone_the_next_one_deals() -> None:
    own = vectors(IDS, NUMBERS, BITS)
    result, transcript = run_protocol(small("group"), own, KEY, lambda step, id: step == 1 and id == 2)
    assert result["ids"].tolist() == [3, 7, 40]
    assert [list(step) for step in transcript.down[1:3]] == [[2], [3]]


def test_who_is_asked_to_decrypt_and_is_gone_is_replaced() -> None:
    own = vectors(IDS, NUMBERS, BITS)
    result, transcript = run_protocol(small("group"), own, KEY, lambda step, id: step == 3 and id in (2, 3))
    assert [list(step) for step in transcript.down[3:]] == [[2, 3], [7, 40]]
    assert result["sum"].tolist() == plain_sum(own, IDS, BITS).tolist()


@holdings
def test_below_the_threshold_nothing_is_decrypted(key: KeyHolding) -> None:
    own, protocol = vectors(IDS, NUMBERS, BITS), small(key, threshold=3)
    with pytest.raises(ProtocolError, match="2 vectors came, the threshold is 3"):
        run_protocol(protocol, own, KEY, lambda step, id: step == UPLOAD and id in (3, 7))


@holdings
def test_a_client_itself_keeps_to_the_threshold(key: KeyHolding) -> None:
    """A server that wants one vector alone asks for a sum of one."""
    alone = lambda body: {**body, "ids": torch.tensor([2])}  # noqa: E731
    with pytest.raises(ProtocolError, match="a sum of 1, the threshold is 2"):
        run(small(key), vectors(IDS, NUMBERS, BITS), down=at("decrypt", alone, 2))


@pytest.mark.parametrize(("key", "kind"), [*((key, "decrypt") for key in HOLDINGS), ("shared", "share")])
def test_a_client_helps_only_with_sums_of_those_who_encrypted(key: KeyHolding, kind: str) -> None:
    """A server that adds a client of its own."""

    def larger(body: Tree) -> Tree:
        keys = {"keys": torch.cat([body["keys"], body["keys"][:1]])} if kind == "share" else {}
        return {**body, "ids": torch.cat([body["ids"], torch.tensor([99])]), **keys}

    with pytest.raises(ProtocolError, match="clients that did not encrypt"):
        run(small(key), vectors(IDS, NUMBERS, BITS), down=at(kind, larger, 2))


@holdings
def test_the_private_key_never_passes_the_server_in_clear(key: KeyHolding, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[bytes] = []
    draw = PaillierAggregation.draw_keys

    def watched(self: PaillierAggregation, *given: object) -> tuple[Tree, bytes]:
        public, private = draw(self, *given)  # type: ignore[arg-type]
        drawn.append(private)
        return public, private

    monkeypatch.setattr(PaillierAggregation, "draw_keys", watched)
    _, transcript = run(small(key), vectors(IDS, NUMBERS, BITS))
    (private,) = drawn
    seen = all_bytes(transcript)
    assert private[:16] not in seen  # p
    assert private[16:] not in seen  # q


@pytest.mark.parametrize("key", ["group", "holder"])
def test_no_vector_passes_the_server_in_clear(key: KeyHolding) -> None:
    own = vectors(IDS, NUMBERS, BITS)
    _, transcript = run(replace(small(key), packed=False), own)
    seen = all_bytes(transcript)
    assert not [id for id in IDS if own[id]["vector"].to(torch.int16).numpy().tobytes() in seen]


def test_keys_are_drawn_from_the_system_anew_in_every_round() -> None:
    protocol = PaillierAggregation(bits=BITS, key_bits=2048)
    publics = [protocol.draw_keys(2, protocol.random_bytes(KEY))[0]["n"].tolist() for _ in range(2)]
    assert publics[0] != publics[1]
    seeded = [small("group").draw_keys(2, small("group").random_bytes(KEY))[0]["n"].tolist() for _ in range(2)]
    assert seeded[0] == seeded[1]


@pytest.mark.parametrize("tag", [2, 3], ids=["with its tag", "with the client's own"])
@pytest.mark.parametrize("protocol", [small("group"), CkksAggregation(bits=BITS)], ids=["paillier", "ckks"])
def test_a_ciphertext_that_another_sent_in_a_clients_place_is_refused(
    protocol: HomomorphicAggregation, tag: int
) -> None:
    """On its way: the public key is no secret, so that anybody can encrypt, or send what another client sent."""
    bodies: dict[int, Tree] = {}

    def up(step: int, id: int, message: Message) -> Message:
        if message.kind != "ciphertexts":
            return message
        bodies[id] = message.body
        return message._replace(body={**bodies[2], "tag": bodies[tag]["tag"]}) if id == 3 else message

    with pytest.raises(ProtocolError, match=r"client 2: the ciphertexts of client 3 are not those that it sent"):
        run(protocol, vectors(IDS, NUMBERS, BITS), up=up)


def test_a_tag_is_of_a_key_that_the_server_does_not_have() -> None:
    """Every client has it from the dealer's box; whoever made a key of its own would be refused."""
    other = lambda body: {**body, "tag": body["tag"] ^ 1}  # noqa: E731
    with pytest.raises(ProtocolError, match="the ciphertexts of client 3 are not those that it sent"):
        run(small("group"), vectors(IDS, NUMBERS, BITS), up=at("ciphertexts", other, 3))
    with pytest.raises(ProtocolError, match="client 3: sent a tag of 31 bytes"):
        run(small("group"), vectors(IDS, NUMBERS, BITS), up=at("ciphertexts", lambda b: {**b, "tag": b["tag"][1:]}, 3))


def test_two_decryptions_that_differ_are_refused() -> None:
    flip = lambda body: {**body, "residues": body["residues"] ^ 1}  # noqa: E731
    with pytest.raises(ProtocolError, match=r"clients \[2, 3\] decrypt one sum to two"):
        run(small("group"), vectors(IDS, NUMBERS, BITS), up=at("residues", flip, 3))


def without(name: str) -> Callable[[Tree], Tree]:
    return lambda body: {k: v for k, v in body.items() if k != name}


def ciphertexts(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tree], Tree]:
    return lambda body: {**body, "ciphertexts": {"ciphertexts": change(body["ciphertexts"]["ciphertexts"])}}


@holdings
@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("box_key", without("key"), "client 3: 'key' is not"),
        ("box_key", lambda body: {"key": body["key"][:31]}, "client 3: sent a key of 31 bytes"),
        ("box_key", lambda body: {"key": body["key"].long()}, "client 3: 'key' is not a tensor of torch.uint8"),
        ("ciphertexts", without("ciphertexts"), "client 3: its message has no part"),
        ("ciphertexts", without("about"), "client 3: 'about' is not"),
        ("ciphertexts", lambda body: {**body, "numbers": body["numbers"] + 1}, "All need the same model"),
        ("ciphertexts", ciphertexts(lambda x: x[:-1]), "client 3: sent"),
        ("ciphertexts", ciphertexts(lambda x: x[:, :-1]), "client 3: sent"),
        ("ciphertexts", ciphertexts(torch.zeros_like), "client 3: ciphertext 0 is not between"),
        ("ciphertexts", ciphertexts(lambda x: x | 255), "client 3: ciphertext 0 is not between"),
        ("ciphertexts", ciphertexts(lambda x: x.float()), "client 3: 'ciphertexts' is not a tensor of torch.uint8"),
    ],
)
def test_a_malformed_answer_is_refused_with_its_sender(
    key: KeyHolding, kind: str, change: Callable[[Tree], Tree], words: str
) -> None:
    with pytest.raises(ProtocolError, match=words):
        run(small(key), vectors(IDS, NUMBERS, BITS), up=at(kind, change, 3))


@holdings
@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("encrypt", without("public"), "server: its message has no part 'public'"),
        ("encrypt", without("ids"), "server: 'ids' is not"),
        ("encrypt", lambda body: {**body, "ids": torch.tensor([2, 7, 40])}, "a sum that it is not in"),
        ("encrypt", lambda body: {**body, "ids": torch.tensor([2, 3, 3, 40])}, "names a client twice"),
        ("encrypt", lambda body: {**body, "ids": torch.tensor([2, 3, 7, 41])}, "does not open"),
        ("encrypt", lambda body: {**body, "public": {**body["public"], "n": body["public"]["n"] ^ 2}}, "not open"),
        ("encrypt", lambda body: {**body, "box": body["box"] ^ 1}, "does not open"),
    ],
)
def test_what_the_server_changed_is_refused_by_the_client(
    key: KeyHolding, kind: str, change: Callable[[Tree], Tree], words: str
) -> None:
    with pytest.raises(ProtocolError, match=words):
        run(small(key), vectors(IDS, NUMBERS, BITS), down=at(kind, change, 3))


@holdings
def test_a_dealer_sees_that_its_own_key_was_changed(key: KeyHolding) -> None:
    other = {"n": small(key).draw_keys(4, secrets.token_bytes)[0]["n"]}
    change = lambda body: {**body, "public": {**body["public"], **other}}  # noqa: E731
    with pytest.raises(ProtocolError, match="the server changed the key or the roster"):
        run(small(key), vectors(IDS, NUMBERS, BITS), down=at("encrypt", change, 2))


@pytest.mark.parametrize(("key", "kind"), [("group", "dealt"), ("shared", "shares")])
def test_boxes_for_another_client_do_not_open(key: KeyHolding, kind: str) -> None:
    def swapped(body: Tree) -> Tree:
        return {**body, "boxes": {**body["boxes"], "3": body["boxes"]["7"], "7": body["boxes"]["3"]}}

    with pytest.raises(ProtocolError, match="does not open"):
        run(small(key), vectors(IDS, NUMBERS, BITS), up=at(kind, swapped))


@pytest.mark.parametrize(("key", "kind"), [("group", "dealt"), ("holder", "dealt"), ("shared", "shares")])
def test_boxes_for_others_than_the_roster_are_refused(key: KeyHolding, kind: str) -> None:
    fewer = lambda body: {**body, "boxes": without("7")(body["boxes"])}  # noqa: E731
    with pytest.raises(ProtocolError, match="client 2: sealed the key for others"):
        run(small(key), vectors(IDS, NUMBERS, BITS), up=at(kind, fewer))


@pytest.mark.parametrize("asked", [2, 7])
def test_only_a_dealer_that_shares_is_asked_for_its_key(asked: int) -> None:
    """A server that asks for shares where nobody shares, or somebody who has no key."""
    protocol = small("group" if asked == 2 else "shared")
    own = vectors(IDS, NUMBERS, BITS)
    client = protocol.client(asked, own[asked], rng.fold_host(KEY, asked))
    _, transcript = run_protocol(protocol, own, KEY)
    next(client)
    for step in transcript.down[:3]:
        if asked in step:
            client.send(step[asked])
    roster = transcript.down[1][2].body
    with pytest.raises(ProtocolError, match="has no key to share"):
        client.send(Message("share", roster))


def test_who_holds_no_key_is_not_asked_to_decrypt() -> None:
    protocol, own = small("holder"), vectors(IDS, NUMBERS, BITS)
    _, transcript = run(protocol, own)
    client = protocol.client(7, own[7], rng.fold_host(KEY, 7))
    next(client)
    client.send(transcript.down[0][7])
    client.send(transcript.down[2][7])
    with pytest.raises(ProtocolError, match="client 7: has no key to decrypt with"):
        client.send(transcript.down[3][2])


@pytest.mark.parametrize(("key", "kind"), [("group", "ciphertexts"), ("group", "residues"), ("shared", "partial")])
def test_an_answer_of_an_earlier_round_is_refused(key: KeyHolding, kind: str) -> None:
    protocol = small(key)
    _, earlier = run_protocol(protocol, vectors(IDS, NUMBERS, BITS), rng.key("earlier"))
    old = next(m[3].body for m in earlier.up if 3 in m and m[3].kind == kind)
    with pytest.raises(ProtocolError, match=f"client 3: its {kind} are for another key, roster or sum"):
        run(protocol, vectors(IDS, NUMBERS, BITS), up=at(kind, lambda body: old, 3))


@holdings
@pytest.mark.parametrize("step", range(4))
def test_messages_in_another_order_are_refused(key: KeyHolding, step: int) -> None:
    """The answer of the step before once more, or a message that the protocol does not have."""
    protocol, own = small(key), vectors(IDS, NUMBERS, BITS)
    _, transcript = run_protocol(protocol, own, KEY)
    before = transcript.up[step - 1].get(2) if step else Message("hello", {})
    assert before is not None
    with pytest.raises(ProtocolError, match=r"was due\. Messages keep their order"):
        run(protocol, own, up=lambda at, id, message: before if at == step and id == 2 else message)
    with pytest.raises(ProtocolError, match=r"was due\. Messages keep their order"):
        run(protocol, own, down=lambda at, id, message: Message("hello", {}) if at == step and id == 2 else message)


def test_a_private_key_of_another_pair_is_refused() -> None:
    protocol = small("group")
    public, _ = protocol.draw_keys(4, secrets.token_bytes)
    _, other = protocol.draw_keys(4, secrets.token_bytes)
    total = protocol.encrypt(public, torch.arange(5), 4, secrets.token_bytes)
    with pytest.raises(ProtocolError, match="not that of the public one"):
        protocol.decrypt(public, other, total, 5, 4)


@holdings
def test_a_threshold_below_one_is_a_share_of_the_cohort(key: KeyHolding) -> None:
    """More than 60 % of four are three: for the server, and for a client that is asked for a smaller sum."""
    protocol, own = small(key, threshold=0.6), vectors(IDS, NUMBERS, BITS)
    assert outcome(protocol, own, lambda step, id: step == UPLOAD and id == 7) is not None
    with pytest.raises(ProtocolError, match="2 vectors came, the threshold is 3"):
        run_protocol(protocol, own, KEY, lambda step, id: step == UPLOAD and id in (3, 7))
    two = lambda body: {**body, "ids": torch.tensor([2, 3])}  # noqa: E731
    with pytest.raises(ProtocolError, match="client 2: a sum of 2, the threshold is 3"):
        run(protocol, own, down=at("decrypt", two, 2))


@pytest.mark.parametrize("number", [-1, 1 << BITS])
def test_numbers_that_are_no_residues_are_refused_before_they_spoil_a_neighbour(number: int) -> None:
    own = vectors(IDS, NUMBERS, BITS)
    own[7]["vector"][3] = number
    with pytest.raises(ProtocolError, match=r"client 7: holds numbers that are no residues modulo 2\^16"):
        run_protocol(small("group"), own, KEY)
