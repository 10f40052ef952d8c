"""OARF's parts: what each client holds in between, and what it warns of."""

import warnings

import pytest
import torch

from atoll import rng
from atoll.core import Message
from atoll.errors import ConfigError, ProtocolError
from atoll.protocols import AdditiveSharing, run_protocol
from atoll.testing.interception import Intercepted
from tests.support.secure import KEY, plain_sum, vectors


@pytest.mark.parametrize("clients", [2, 3, 5])
@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.filterwarnings("ignore:secure aggregation of two parties")
def test_any_number_of_splits_gives_the_sum(clients: int, compact: bool) -> None:
    for splits in range(2, clients + 1):
        protocol = AdditiveSharing(splits=splits, compact=compact)
        own = vectors(protocol, clients)
        result, log = run_protocol(protocol, own, KEY)
        assert result["sum"].tolist() == plain_sum(protocol, own, list(own))
        assert {len(m.body["ids"]) for m in log.up[1].values()} == {splits - 1}


def test_what_arrives_is_equation_2_of_the_paper() -> None:
    """g'_i = g_i - its parts + the parts of those before it on the ring, whose seeds the test draws itself."""
    protocol = AdditiveSharing(splits=3, bits=20, insecure_seed=True)
    seeds: dict[tuple[int, int], bytes] = {}

    class Recorded(AdditiveSharing):
        def random_bytes(self, key):  # type: ignore[no-untyped-def]
            draw, calls = super().random_bytes(key), []

            def recorded(n: int) -> bytes:
                calls.append(draw(n))
                if len(calls) > 1:  # after the key: one seed for each part
                    seeds[tuple(key.tolist()), len(calls) - 1] = calls[-1]  # type: ignore[index]
                return calls[-1]

            return recorded

    recording = Recorded(splits=3, bits=20, insecure_seed=True)
    own = vectors(protocol, 5)
    _, log = run_protocol(recording, own, KEY)
    ids = list(own)
    keys = [tuple(rng.fold_host(KEY, id).tolist()) for id in ids]
    part = {(i, j): protocol.mask(seeds[keys[i], j], 5, 5) for i in range(5) for j in (1, 2)}  # type: ignore[index]
    for i, id in enumerate(ids):
        last = own[id]["vector"] - part[i, 1] - part[i, 2]
        total = last + part[(i - 1) % 5, 1] + part[(i - 2) % 5, 2]
        assert log.up[2][id].body["vector"].tolist() == (total % 2**20).tolist()


def test_parts_go_around_the_ring() -> None:
    protocol = AdditiveSharing(splits=3)
    assert protocol.receivers([1, 4, 6, 9], 6) == [9, 1]
    assert protocol.receivers([1, 4, 6, 9], 1) == [4, 6]


def test_two_parties_are_told_that_they_know_each_other() -> None:
    protocol = AdditiveSharing()
    with pytest.warns(UserWarning, match=r"two parties: each knows the other's vector .* hidden from the server alone"):
        run_protocol(protocol, vectors(protocol, 2), KEY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_protocol(protocol, vectors(protocol, 3), KEY)


@pytest.mark.parametrize("step", [0, 1, 2])
def test_nobody_may_drop_out(step: int) -> None:
    protocol = AdditiveSharing()
    with pytest.raises(ProtocolError, match=r"3 clients answered with .*, and the threshold is 4"):
        run_protocol(protocol, vectors(protocol, 4), KEY, lambda at, id: (at, id) == (step, 9))


def test_a_part_that_does_not_come_is_noticed_by_whom_it_was_for() -> None:
    protocol = AdditiveSharing(splits=3)

    def down(step: int, id: int, message: Message) -> Message:
        if message.kind != "boxes" or id != 16:
            return message
        left = [i for i in message.body["ids"].tolist() if i != 2]
        return message._replace(body={**message.body, "ids": torch.tensor(left), "boxes": message.body["boxes"][1:]})

    with pytest.raises(ProtocolError, match="1 parts of 2 came"):
        run_protocol(Intercepted(protocol, down=down), vectors(protocol, 4), KEY)


@pytest.mark.parametrize("splits", [0, 1])
def test_one_part_is_the_vector_itself(splits: int) -> None:
    with pytest.raises(ConfigError, match="splits: must be at least 2"):
        AdditiveSharing(splits=splits)


def test_more_parts_than_clients_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"secure.protocol.splits: 4 parts for 3 clients.* use 3 or fewer"):
        AdditiveSharing(splits=4).least(3)


def test_compact_parts_are_seeds() -> None:
    sizes = {}
    for compact in (False, True):
        protocol = AdditiveSharing(compact=compact)
        _, log = run_protocol(protocol, vectors(protocol, 3, 1000), KEY, over_wire=True)
        sizes[compact] = log.up[1][2].body["boxes"].shape[1]
    assert sizes == {False: 4000 + 16, True: 32 + 16}


def test_who_must_collude_is_said() -> None:
    assert "all 2 clients" in AdditiveSharing(splits=2).security(5).assumes
    assert "all 4 clients" in AdditiveSharing(splits=4).security(5).assumes
    assert "each learns the other's" in AdditiveSharing().security(2).clients_learn
