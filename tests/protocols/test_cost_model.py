"""What a protocol would take among more clients: predicted from small runs, against a larger one that was made."""

import numpy as np
import pytest
import torch

from atoll import rng
from atoll.protocols import (
    PROTOCOLS,
    CostModel,
    Fit,
    ProtocolCosts,
    ProtocolWork,
    SecureAggregation,
    rehearse,
    run_protocol,
)
from tests.support.marks import slow_but


@pytest.mark.parametrize("name", slow_but(PROTOCOLS, "secagg"))
def test_bytes_of_a_larger_cohort_are_predicted(name: str) -> None:
    """LightSecAgg rounds its parts up; of Paillier, how many numbers a plaintext holds depends on the clients."""
    protocol: SecureAggregation = PROTOCOLS[name](bits=32, insecure_seed=False)
    clients, numbers = 30, 3000
    model = CostModel.fitted(protocol, rehearse(protocol), clients, numbers)
    own = {id: {"vector": torch.arange(numbers)} for id in range(clients)}
    _, log = run_protocol(protocol, own, rng.key("large"), over_wire=True, keep_messages=False)
    counted = ProtocolCosts.of(log, clients)
    predicted = model.costs(ProtocolWork(clients, protocol.partners(clients), numbers))
    near = {"light_secagg": 0.25, "paillier": 0.25}.get(name, 0.02)
    assert predicted.up == pytest.approx(counted.up, rel=near)
    assert predicted.down == pytest.approx(counted.down, rel=near)
    assert 0.1 < predicted.client_seconds / counted.client_seconds < 10  # other work goes on beside a test
    assert 10 < Fit(*model.fit.tolist()).clients < clients


def test_a_client_whose_vector_never_comes_sends_next_to_nothing() -> None:
    model = CostModel(np.ones((4, 11)), np.zeros(7))
    whole, half = (model.costs(ProtocolWork(10, 0, 100, lost)) for lost in (0, 5))
    assert half.up == whole.up / 2
    assert half.server_seconds == whole.server_seconds
    assert (half.own_up, half.own_seconds) == (whole.own_up, whole.own_seconds)  # of those who are there


@pytest.mark.slow
def test_what_some_do_for_all_is_predicted_apart() -> None:
    """Two of 24 decrypt: a mean over all would be a twelfth of what the others wait for."""
    protocol: SecureAggregation = PROTOCOLS["ckks"](bits=32, insecure_seed=False)
    clients, numbers = 24, 3000
    model = CostModel.fitted(protocol, rehearse(protocol), clients, numbers)
    own = {id: {"vector": torch.arange(numbers)} for id in range(clients)}
    _, log = run_protocol(protocol, own, rng.key("large"), over_wire=True, keep_messages=False)
    counted = ProtocolCosts.of(log, clients)
    predicted = model.costs(ProtocolWork(clients, protocol.partners(clients), numbers))
    assert predicted.role_down == pytest.approx(counted.role_down, rel=0.05)
    assert predicted.role_up == pytest.approx(counted.role_up, rel=0.05)
    assert 0.1 < predicted.role_seconds / counted.role_seconds < 10  # other work goes on beside a test


def test_of_a_checkpoint_of_an_earlier_version_every_client_has_the_mean() -> None:
    old = CostModel(np.ones((4, 11)), np.zeros(7)).costs(ProtocolWork(10, 0, 100))
    assert (old.own_up, old.own_seconds, old.role_seconds) == (old.up, old.client_seconds, 0.0)


def test_before_anything_was_measured_nothing_costs_anything() -> None:
    assert set(CostModel.nothing().costs(ProtocolWork(10, 9, 100))) == {0.0}
