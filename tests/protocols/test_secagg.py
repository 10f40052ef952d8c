"""What a client of SecAgg refuses to say, whatever the server asks; and what a server that lies is caught at."""

import secrets
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from atoll import tree
from atoll.core import Message
from atoll.errors import ConfigError, ProtocolError
from atoll.protocols import LightSecAgg, SecAgg, SecAggPlus, run_protocol, shamir
from atoll.protocols.graphs import Graph
from atoll.protocols.pairwise_client import commitment, consistency_text, keys_text
from atoll.protocols.pairwise_server import _Desk
from atoll.protocols.secure_aggregation import who_may_collude
from atoll.testing.interception import Intercepted
from atoll.tree import Tree
from tests.support.secure import KEY, plain_sum, vectors

PLAIN = SecAgg(insecure_seed=True)
ACTIVE = replace(PLAIN, active_server=True)
IDS = [2, 9, 16, 23, 30, 37]  # of whom 5 must stay


def told(protocol: SecAgg, to: list[int], kind: str, change: Callable[[Tree], Tree]) -> Tree:
    """The result of a round in which some clients are told something else."""

    def down(step: int, id: int, message: Message) -> Message:
        if id not in to or message.kind != kind:
            return message
        return message._replace(body={**message.body, **change(message.body)})

    return run_protocol(Intercepted(protocol, down=down), vectors(protocol, 6), KEY)[0]


def without(name: str, *ids: int) -> Callable[[Tree], Tree]:
    return lambda body: {name: torch.tensor([id for id in body[name].tolist() if id not in ids])}


def test_nothing_is_changed_by_who_only_listens() -> None:
    own = vectors(PLAIN, 6)
    result = told(PLAIN, IDS, "unmask", lambda body: {})
    assert list(own) == result["ids"].tolist() == IDS
    assert result["sum"].tolist() == plain_sum(PLAIN, own, IDS)


def test_both_shares_of_one_client_are_not_revealed() -> None:
    with pytest.raises(ProtocolError, match=r"client 9: asked for both shares of client 16\. They would unmask"):
        told(PLAIN, [9], "unmask", lambda body: {"dropped": torch.tensor([16])})


def test_nothing_is_revealed_below_the_threshold() -> None:
    with pytest.raises(ProtocolError, match="client 9: 4 clients are said to be left, and the threshold is 5"):
        told(PLAIN, [9], "unmask", without("alive", 16, 23))


def test_a_client_that_is_said_to_be_gone_reveals_nothing() -> None:
    with pytest.raises(ProtocolError, match="a list without client 9 itself"):
        told(PLAIN, [9], "unmask", without("alive", 9))


def test_everybody_who_sent_shares_stayed_or_dropped_out() -> None:
    with pytest.raises(ProtocolError, match="not everybody who sent shares is listed"):
        told(PLAIN, [9], "unmask", without("alive", 16))


@pytest.mark.parametrize("ids", [[9, 2, 16, 23, 30, 37], [2, 2, 9, 16, 23, 30, 37], [-1, 2, 9, 16, 23, 30, 37]])
def test_a_list_in_which_somebody_is_twice_is_refused(ids: list[int]) -> None:
    with pytest.raises(ProtocolError, match="ids that do not increase"):
        told(PLAIN, [9], "unmask", lambda body: {"alive": torch.tensor(ids)})


def test_a_client_that_was_not_there_before_is_refused() -> None:
    with pytest.raises(ProtocolError, match="client 44 was not in the list before"):
        told(PLAIN, [9], "unmask", lambda body: {"alive": torch.tensor([*IDS, 44])})


def test_keys_of_too_few_are_refused() -> None:
    def cut(body: Tree) -> Tree:
        return {"ids": body["ids"][:4], "public": body["public"][:4]}

    with pytest.raises(ProtocolError, match="client 9: 4 clients share keys, and the threshold is 5"):
        told(PLAIN, [9], "peers", cut)


def test_boxes_of_too_few_are_refused() -> None:
    def cut(body: Tree) -> Tree:
        return {"ids": body["ids"][:4], "boxes": body["boxes"][:3]}

    with pytest.raises(ProtocolError, match="client 9: 4 clients sent shares, and the threshold is 5"):
        told(PLAIN, [9], "boxes", cut)


def test_one_key_under_two_names_is_refused() -> None:
    def twice(body: Tree) -> Tree:
        public = body["public"].clone()
        public[0] = public[2]
        return {"public": public}

    with pytest.raises(ProtocolError, match="one key is in the list twice"):
        told(PLAIN, [9], "peers", twice)


def test_a_client_knows_its_own_keys() -> None:
    def other(body: Tree) -> Tree:
        public = body["public"].clone()
        public[1, 0, 0] ^= 1
        return {"public": public}

    with pytest.raises(ProtocolError, match="client 9: is listed with keys that are not its own"):
        told(PLAIN, [9], "peers", other)


@pytest.mark.parametrize("protocol", [PLAIN, ACTIVE])
def test_a_client_answers_once(protocol: SecAgg) -> None:
    clients, questions = {}, {}
    own = vectors(protocol, 6)
    given = protocol.enrol(list(own), KEY)

    class Watched(Intercepted):
        def client(self, id, own, key):  # type: ignore[no-untyped-def]
            clients[id] = super().client(id, own, key)
            return clients[id]

    def down(step: int, id: int, message: Message) -> Message:
        questions[id] = message
        return message

    run_protocol(Watched(protocol, down=down), {id: {**held, **given.get(id, {})} for id, held in own.items()}, KEY)
    with pytest.raises(ProtocolError, match="It answers once in a round"):
        clients[9].send(questions[9])


def test_a_server_that_says_two_lists_is_caught_by_the_consistency_check() -> None:
    """To client 9 it says that client 16 is gone, to the others that it is there: it would get both of its shares."""
    gone = without("ids", 16)
    lies = {"alive": torch.tensor([2, 9, 23, 30, 37]), "dropped": torch.tensor([16])}

    def down(step: int, id: int, message: Message) -> Message:
        if id == 9 and message.kind == "survivors":
            return message._replace(body={**message.body, **gone(message.body)})
        if id == 9 and message.kind == "unmask":
            return message._replace(body={**message.body, **lies})
        return message

    own = vectors(ACTIVE, 6)
    with pytest.raises(ProtocolError, match="The server tells clients different things"):
        run_protocol(Intercepted(ACTIVE, down=down), own, KEY)
    # Without the check, client 9 tells the server a share that it should not have: it only notices by the count.
    revealed = {}

    def up(step: int, id: int, message: Message) -> Message:
        revealed[step, id] = message
        return message

    with pytest.raises(ProtocolError, match="server, from client 9"):
        run_protocol(Intercepted(PLAIN, down=down, up=up), own, KEY)
    assert len(revealed[3, 9].body["keys"]) == 1


@pytest.mark.parametrize("said", [3, 5, 7])
def test_a_server_that_lies_about_the_size_of_the_cohort_is_refused_by_who_was_enrolled(said: int) -> None:
    """The threshold is a share of that number: told of 3, a client would help with a sum of 3."""
    with pytest.raises(ProtocolError, match=f"client 9: a round of {said} clients, and 6 were enrolled"):
        told(ACTIVE, [9], "start", lambda body: {"clients": torch.tensor(said)})


def test_a_server_that_asks_three_of_twenty_who_were_enrolled_gets_no_sum_of_three() -> None:
    protocol = SecAgg(active_server=True)
    own, given = vectors(protocol, 20), protocol.enrol(range(2, 142, 7), KEY)
    group = list(own)[:3]
    clients = {id: protocol.client(id, {**own[id], **given[id]}, KEY) for id in group}
    for client in clients.values():
        next(client)
    start = next(protocol.server(group, KEY))
    for id, message in start.items():
        with pytest.raises(ProtocolError, match="a round of 3 clients, and 20 were enrolled"):
            clients[id].send(message)


def test_survivors_are_those_that_were_signed() -> None:
    with pytest.raises(ProtocolError, match="the survivors are not those it signed"):
        told(ACTIVE, [9], "unmask", lambda body: {"alive": body["alive"][:-1], "dropped": body["alive"][-1:]})


def test_too_few_signatures_reveal_nothing() -> None:
    def cut(body: Tree) -> Tree:
        return {"signers": body["signers"][:4], "signatures": body["signatures"][:4]}

    with pytest.raises(ProtocolError, match="4 clients signed who is left, and the threshold is 5"):
        told(ACTIVE, [9], "unmask", cut)


def test_a_signature_counts_once() -> None:
    def same(body: Tree) -> Tree:
        return {"signatures": body["signatures"][[0, 0, 2, 3, 4, 5]]}

    with pytest.raises(ProtocolError, match="the signature of client 9 is not of what this client was told"):
        told(ACTIVE, [2], "unmask", same)


def test_a_key_that_the_server_made_up_is_not_signed() -> None:
    def forged(body: Tree) -> Tree:
        public = body["public"].clone()
        public[0] = torch.arange(64, dtype=torch.uint8).reshape(2, 32)
        return {"public": public}

    with pytest.raises(ProtocolError, match="the signature of client 2 is not of what"):
        told(ACTIVE, [9], "peers", forged)


def test_without_an_identity_nobody_signs() -> None:
    with pytest.raises(ProtocolError, match="holds no identity to sign with"):
        next(ACTIVE.client(2, {"vector": torch.zeros(3, dtype=torch.int64)}, KEY))


def test_shares_that_are_wrong_are_noticed() -> None:
    """A client that reveals something else cannot change the sum."""

    def up(step: int, id: int, message: Message) -> Message:
        if message.kind != "revealed" or id != 2:
            return message
        return message._replace(body={**message.body, "seeds": message.body["seeds"].roll(1, 0)})

    with pytest.raises(ProtocolError, match=r"another one than it committed to|give no secret"):
        run_protocol(Intercepted(PLAIN, up=up), vectors(PLAIN, 6), KEY)


def test_a_key_of_who_dropped_out_is_checked_against_what_it_advertised() -> None:
    def up(step: int, id: int, message: Message) -> Message:
        if message.kind != "revealed" or id != 2:
            return message
        return message._replace(body={**message.body, "keys": message.body["keys"].flip(1)})

    with pytest.raises(ProtocolError, match=r"another one than it advertised|give no secret"):
        run_protocol(Intercepted(PLAIN, up=up), vectors(PLAIN, 6), KEY, lambda step, id: (step, id) == (2, 37))


def test_vectors_of_two_lengths_have_no_sum() -> None:
    own = vectors(PLAIN, 6)
    own[9] = {"vector": torch.zeros(6, dtype=torch.int64)}
    with pytest.raises(ProtocolError, match="vectors of 5 to 6 numbers"):
        run_protocol(PLAIN, own, KEY)


def test_an_answer_of_who_was_not_asked_is_refused() -> None:
    server = PLAIN.server(IDS, KEY)
    next(server)
    with pytest.raises(ProtocolError, match="from client 99, which was not asked"):
        server.send({99: Message("keys", {})})


@pytest.mark.parametrize("clients", [0, 1, -3, 1 << 40])
def test_a_round_of_nobody_or_of_a_world_is_refused(clients: int) -> None:
    with pytest.raises(ProtocolError, match="A sum hides a vector among 2 to"):
        told(PLAIN, [9], "start", lambda body: {"clients": torch.tensor(clients)})


def test_more_keys_than_clients_were_announced_are_refused() -> None:
    """Told of a small cohort, a client would share its secrets with a low threshold."""
    with pytest.raises(ProtocolError, match="client 9: 6 neighbours and their keys do not fit"):
        told(PLAIN, [9], "start", lambda body: {"clients": torch.tensor(4)})


def test_fewer_shares_than_the_threshold_do_not_give_a_seed() -> None:
    """What clients reveal of client 2's private mask: five shares are what it committed to, four are not."""
    _, log = run_protocol(PLAIN, vectors(PLAIN, 6), KEY)
    session = log.down[0][2].body["session"].numpy().tobytes()
    shares = {id: int.from_bytes(m.body["seeds"][0].numpy().tobytes(), "little") for id, m in log.up[3].items()}
    wanted = log.up[1][2].body["commitment"].numpy().tobytes()
    for holders, right in ((IDS[:5], True), (IDS[1:], True), (IDS[:4], False), (IDS[2:], False)):
        secret = shamir.combine(shamir.coefficients([id + 1 for id in holders]), [shares[id] for id in holders])
        seed = (secret % 2**256).to_bytes(32, "little")
        assert (commitment(seed, session) == wanted) == right


def test_shares_that_give_more_than_32_bytes_are_refused() -> None:
    desk = _Desk(bytes(16), Graph(2, 2, 2), PLAIN, {})
    shares = shamir.split([2**256 + 5], [1, 2], 2, secrets.token_bytes)
    rows = [(i, x.to_bytes(shamir.SHARE_BYTES, "little")) for i, [x] in enumerate(shares)]
    with pytest.raises(ProtocolError, match="give no secret of 32 bytes"):
        desk._secret(7, rows)


def test_a_neighbourhood_that_is_gone_ends_the_round() -> None:
    """Over a sparse graph enough clients may stay, and yet too few of one client's neighbours."""
    protocol = SecAggPlus(dropout=0.5, corrupt=0.02, insecure_seed=True)
    own = vectors(protocol, 100)
    graph = protocol.graph(100)
    _, log = run_protocol(protocol, own, KEY)
    near = [id for id in log.down[1][2].body["ids"].tolist() if id != 2]
    gone = near[graph.threshold - 2 :]
    assert len(near) == graph.degree < 99
    assert len(gone) <= 100 - graph.least
    with pytest.raises(ProtocolError, match=r"server: \d+ shares of client \d+ came, and the threshold is"):
        run_protocol(protocol, own, KEY, lambda step, id: step == 3 and id in gone)


def test_what_is_signed_names_all_keys_as_they_were_told() -> None:
    keys = {2: bytes(32), 9: bytes([9]) * 32}
    text = consistency_text(bytes(16), 3, keys, keys, [2, 9])
    assert text == consistency_text(bytes(16), 3, dict(keys), dict(keys), [2, 9])
    for other in (
        consistency_text(bytes([1]) * 16, 3, keys, keys, [2, 9]),
        consistency_text(bytes(16), 4, keys, keys, [2, 9]),
        consistency_text(bytes(16), 3, {**keys, 9: bytes(32)}, keys, [2, 9]),
        consistency_text(bytes(16), 3, keys, {**keys, 9: bytes(32)}, [2, 9]),
        consistency_text(bytes(16), 3, keys, keys, [2]),
    ):
        assert other != text


def test_what_is_signed_of_keys_names_the_size_of_the_cohort() -> None:
    assert keys_text(bytes(16), 3, 2, bytes(64)) != keys_text(bytes(16), 4, 2, bytes(64))


def test_keys_come_from_the_system_and_from_no_seed() -> None:
    """With the same key of the experiment, two rounds have no bytes in common, and the same sum."""
    protocol = SecAgg()
    own = vectors(protocol, 4)
    (one, first), (two, second) = (run_protocol(protocol, own, KEY) for _ in range(2))
    assert tree.digest(one) == tree.digest(two)
    for a, b in zip(first.up, second.up, strict=True):
        assert all(not torch.equal(a[id].body["session"], b[id].body["session"]) for id in own)
    assert not torch.equal(first.up[0][2].body["public"], second.up[0][2].body["public"])
    assert not torch.equal(first.up[2][2].body["vector"], second.up[2][2].body["vector"])


def test_a_threshold_that_a_lying_server_could_ask_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"above two thirds: 67\."):
        SecAgg(active_server=True, threshold=0.5).least(100)
    assert SecAgg(active_server=True).least(100) == 67
    assert [SecAgg(active_server=True).least(n) for n in (3, 4, 5, 6, 9)] == [3, 3, 4, 5, 7]


@pytest.mark.parametrize("threshold", [0, -1])
def test_a_threshold_of_nobody_is_refused(threshold: float) -> None:
    with pytest.raises(ConfigError, match="threshold: must be above 0"):
        SecAgg(threshold=threshold)


def test_a_secret_is_never_shared_so_that_one_share_gives_it() -> None:
    assert [SecAgg(threshold=t).least(5) for t in (1, 0.1, 0.3, 2)] == [2, 2, 2, 2]
    assert LightSecAgg(threshold=1).least(5) == SecAggPlus(dropout=0.9, corrupt=0).least(5) == 2


def test_what_is_promised_is_said_in_numbers() -> None:
    curious, lying = SecAgg().security(100), SecAgg(active_server=True).security(100)
    assert curious.level == lying.level == 2
    assert "Up to 66 of 100 clients may collude" in curious.assumes
    assert "Up to 33 of 100 clients may collude" in lying.assumes  # Bonawitz et al., theorem 6.5
    assert "directory that the server does not write" in lying.assumes
    assert "the sum of the others in it, of whom there may be as few as 1, whose vector that is." in curious.assumes
    assert "as few as 34." in lying.assumes  # 67 - 33
    assert "Up to 10 of 100 clients" in SecAggPlus().security(100).assumes
    assert "as few as 60." in SecAggPlus().security(100).assumes
    assert "None of 1 clients may collude" in who_may_collude(0, 1, 1)
    assert "at least 67 of 100" in curious.server_learns
    sparse = SecAggPlus().security(100)
    assert "34 neighbours and 11 shares" in sparse.assumes
    assert "at least 70 of 100" in sparse.server_learns


def test_as_many_as_may_collude_subtract_their_own_vectors_and_are_left_with_what_is_stated() -> None:
    """13 of 20 and a sum of 14: nothing of the protocol keeps them from the last one's vector, so it must be said."""
    own = vectors(PLAIN, 20)
    ids = list(own)
    result, _ = run_protocol(PLAIN, own, KEY, lambda step, id: step == 2 and id in ids[14:])
    theirs = plain_sum(PLAIN, own, ids[1:14])
    assert [(a - b) % 2**32 for a, b in zip(result["sum"].tolist(), theirs, strict=True)] == own[2]["vector"].tolist()
    assert "Up to 13 of 20" in PLAIN.security(20).assumes
    assert "as few as 1, whose vector that is" in PLAIN.security(20).assumes


def test_parts_that_leave_nobody_are_refused() -> None:
    with pytest.raises(ConfigError, match="leave nobody who is honest and stays"):
        SecAggPlus(corrupt=0.5, dropout=0.5)
