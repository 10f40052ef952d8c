"""A secure shuffle: all vectors arrive, the mix cannot read them, and the server cannot tell whose they are."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from atoll import rng
from atoll.core import Message
from atoll.errors import ProtocolError
from atoll.protocols import run_protocol, seeded_bytes
from atoll.protocols.sealed_box import OVERHEAD, BoxKey
from atoll.protocols.shuffle import SecureShuffle
from atoll.testing import check_protocol
from atoll.tree import Tree
from tests.support.tampering import Tampered, at
from tests.support.vectors import plain_sum, vectors

KEY = rng.key("shuffle")
IDS = (2, 3, 7, 40)
SEEDED = SecureShuffle(insecure_seed=True)
RANDOM = seeded_bytes(KEY)
OWNER = BoxKey.draw(RANDOM)


def mixed(protocol: SecureShuffle, own: dict[int, Tree], drops: tuple[int, ...] = ()) -> Message:
    """What the mix hands to the server."""
    mix = protocol.mix(list(own), OWNER.public, protocol.random_bytes(KEY))
    outbox, inbox = next(mix), {}
    for id, message in outbox.items():
        client = protocol.client(id, own[id], rng.fold_host(KEY, id))
        next(client)
        inbox[id] = client.send(message)
    with pytest.raises(StopIteration) as end:
        mix.send({id: m for id, m in inbox.items() if id not in drops})
    return end.value.value


def test_it_is_a_protocol() -> None:
    assert "pure, and keyed" in check_protocol(SEEDED, lambda i: {"vector": torch.arange(5) + i})


@given(
    bits=st.integers(2, 62),
    numbers=st.integers(1, 40),
    ids=st.lists(st.integers(0, 10**6), min_size=2, max_size=6, unique=True),
)
def test_the_server_gets_all_vectors_and_their_sum(bits: int, numbers: int, ids: list[int]) -> None:
    own = vectors(ids, numbers, bits)
    result, _ = run_protocol(SecureShuffle(bits=bits), own, KEY)
    assert result["sum"].tolist() == plain_sum(own, ids, bits).tolist()
    assert sorted(result["rows"].tolist()) == sorted(own[id]["vector"].tolist() for id in ids)
    assert result["ids"].tolist() == sorted(ids)


def test_who_drops_out_is_not_in_the_sum() -> None:
    own = vectors(IDS, 5, 32)
    result, _ = run_protocol(SEEDED, own, KEY, lambda step, id: id in (3, 40))
    assert result["ids"].tolist() == [2, 7]
    assert result["sum"].tolist() == plain_sum(own, (2, 7), 32).tolist()
    with pytest.raises(ProtocolError, match="1 vectors came, the threshold is 2"):
        run_protocol(SEEDED, own, KEY, lambda step, id: id != 3)


def test_every_order_is_as_likely_as_every_other() -> None:
    """Chi-square over the 24 orders of four vectors, 2,400 shuffles, at a level of 1 in 10^6."""
    boxes = {id: Message("sealed", {"box": torch.full((4 + OVERHEAD,), id, dtype=torch.uint8)}) for id in IDS}
    inbox = {id: Message(m.kind, {**m.body, "numbers": torch.tensor(1)}) for id, m in boxes.items()}
    orders: Counter[tuple[int, ...]] = Counter()
    for _ in range(2400):
        mix = SEEDED.mix(IDS, OWNER.public, RANDOM)
        next(mix)
        with pytest.raises(StopIteration) as end:
            mix.send(inbox)
        orders[tuple(end.value.value.body["boxes"][:, 0].tolist())] += 1
    statistic = sum((orders[order] - 100) ** 2 / 100 for order in orders) + 100 * (24 - len(orders))
    assert statistic < chi2.isf(1e-6, 23)


def test_the_order_does_not_come_from_the_seed_of_the_experiment() -> None:
    own = {id: {"vector": torch.tensor([id])} for id in range(30)}
    rows = [run_protocol(SecureShuffle(), own, KEY)[0]["rows"].tolist() for _ in range(2)]
    assert rows[0] != rows[1]
    assert sorted(rows[0]) == sorted(rows[1])
    seeded = [run_protocol(SEEDED, own, KEY)[0]["rows"].tolist() for _ in range(2)]
    assert seeded[0] == seeded[1]


def test_what_the_server_gets_says_nothing_of_senders_but_who_they_were() -> None:
    body = mixed(SEEDED, vectors(IDS, 5, 32)).body
    assert body.keys() == {"boxes", "ids", "numbers"}
    assert body["boxes"].shape == (4, 5 * 4 + OVERHEAD)
    assert body["ids"].tolist() == sorted(IDS)


def test_the_mix_sees_no_vector() -> None:
    own = vectors(IDS, 50, 32)
    boxes = mixed(SEEDED, own).body["boxes"].numpy().tobytes()
    assert not [id for id in IDS if own[id]["vector"].to(torch.int32).numpy().tobytes()[:8] in boxes]
    stranger = BoxKey.draw(seeded_bytes(rng.key("stranger")))
    with pytest.raises(ProtocolError, match="does not open"):
        SEEDED.open(mixed(SEEDED, own), stranger)


def test_a_vector_of_another_length_is_refused_for_it_would_tell_whose_it_is() -> None:
    own = {**vectors(IDS, 5, 32), 9: {"vector": torch.arange(6)}}
    with pytest.raises(ProtocolError, match="One of another length would tell whose it is"):
        run_protocol(SEEDED, own, KEY)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda body: {**body, "box": body["box"] ^ 1}, "does not open"),
        (lambda body: {**body, "box": body["box"][:-1]}, "another length"),
        (lambda body: {"box": body["box"]}, "client 3: 'numbers' is not"),
        (lambda body: {**body, "box": body["box"].float()}, "client 3: 'box' is not a tensor of torch.uint8"),
    ],
)
def test_malformed_answers_are_refused(change: Callable[[Tree], Tree], words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        run_protocol(Tampered(SEEDED, up=at("sealed", change, 3)), vectors(IDS, 5, 32), KEY)


def test_a_box_of_an_earlier_round_does_not_open() -> None:
    own = vectors(IDS, 5, 32)
    _, earlier = run_protocol(SEEDED, own, rng.key("earlier"))
    with pytest.raises(ProtocolError, match="does not open"):
        run_protocol(Tampered(SEEDED, up=at("sealed", lambda body: earlier.up[0][3].body, 3)), own, KEY)


def test_a_mix_that_leaves_out_a_box_is_seen() -> None:
    message = mixed(SEEDED, vectors(IDS, 5, 32))
    with pytest.raises(ProtocolError, match="for 4 clients"):
        SEEDED.open(Message("shuffled", {**message.body, "boxes": message.body["boxes"][:-1]}), OWNER)


def test_level_1_for_the_server_sees_every_vector() -> None:
    security = SecureShuffle().security(10)
    assert security.level == 1
    assert "mix and the server do not collude" in security.assumes
    assert np.isclose(SecureShuffle().least(10), 2)
