"""A protocol's costs by who has them: all clients alike, or some for all."""

import pytest
import torch

from atoll import rng
from atoll.protocols import PROTOCOLS, ProtocolCosts, Transcript, run_protocol
from atoll.protocols.protocol_costs import role_steps


def counted(name: str, clients: int, lost: int = 0) -> tuple[ProtocolCosts, Transcript]:
    own = {id: {"vector": torch.arange(50)} for id in range(clients)}
    protocol = PROTOCOLS[name](bits=32, insecure_seed=False)
    _, log = run_protocol(
        protocol, own, rng.key("x"), lambda step, id: step > 1 and id < lost, over_wire=True, keep_messages=False
    )
    return ProtocolCosts.of(log, clients), log


@pytest.mark.parametrize("name", ["additive", "secagg", "light_secagg"])
def test_where_all_do_the_same_nobody_has_a_role(name: str) -> None:
    costs, log = counted(name, 5)
    assert role_steps(log) == []
    assert costs.own_up == pytest.approx(costs.up)
    assert costs.own_seconds == pytest.approx(costs.client_seconds)
    assert costs[7:] == (0.0, 0.0, 0.0)


def test_who_is_lost_makes_no_role_of_who_is_left() -> None:
    assert role_steps(counted("secagg", 6, lost=1)[1]) == []


def test_one_deals_a_key_and_two_decrypt() -> None:
    costs, log = counted("ckks", 6)
    assert role_steps(log) == [1, 3]
    assert costs.role_down == log.down_bytes[1][0] + max(log.down_bytes[3].values())
    assert costs.role_seconds == log.client_seconds[1][0] + max(log.client_seconds[3].values())
    in_all = 6 * costs.own_up + log.up_bytes[1][0] + sum(log.up_bytes[3].values())
    assert 6 * costs.up == pytest.approx(in_all)


def test_where_all_decrypt_it_is_no_role() -> None:
    assert role_steps(counted("ckks", 2)[1]) == [1]


def test_the_busiest_of_a_roles_step_counts_and_steps_add_up() -> None:
    log = Transcript(
        down_bytes=[{0: 1, 1: 1, 2: 1}, {0: 7}, {0: 2, 1: 2, 2: 2}, {1: 5, 2: 6}],
        up_bytes=[{0: 1, 1: 2, 2: 3}, {0: 9}, {0: 4, 1: 4, 2: 4}, {1: 1, 2: 1}],
        client_seconds=[{0: 1.0, 1: 1.0, 2: 4.0}, {0: 10.0}, {0: 1.0, 1: 2.0, 2: 3.0}, {1: 20.0, 2: 30.0}],
        server_seconds=[0.5, 0.25],
    )
    costs = ProtocolCosts.of(log, 3)
    assert costs[:4] == pytest.approx((29 / 3, 27 / 3, 72 / 3, 0.75))
    assert costs[4:7] == pytest.approx((2 + 4, 1 + 2, 2 + 2))
    assert costs[7:] == (10.0, 13.0, 40.0)
