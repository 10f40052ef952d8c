"""Sums under CKKS: exact after rounding where it is promised, refused beyond, and errors as small as computed.

TenSEAL draws its own randomness, so two runs send different messages: of the kit all but purity holds.
"""

import math
import secrets
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll import rng
from atoll.errors import ConfigError, ProtocolError
from atoll.protocols import ckks_context, run_protocol
from atoll.protocols.ckks import CkksAggregation
from atoll.protocols.ckks_context import PARAMETERS, CkksParameters
from atoll.testing.protocol import messages_can_travel, survives_dropouts
from atoll.tree import Tree, paths
from atoll.wire import wire_bytes
from tests.support.examples import few_examples
from tests.support.marks import slow
from tests.support.vectors import plain_sum, vectors

KEY = rng.key("ckks")
IDS = (1, 5, 6, 9)
both = pytest.mark.parametrize("key", ["group", "holder"])
sets = pytest.mark.parametrize("parameters", PARAMETERS, ids=lambda p: f"N={p.degree}")


@lru_cache
def context(parameters: CkksParameters) -> Any:
    return ckks_context.draw_context(parameters)


@both
@few_examples
@given(
    bits=st.integers(2, 44),
    numbers=st.integers(1, 5000),
    ids=st.lists(st.integers(0, 10**6), min_size=2, max_size=4, unique=True),
    seed=st.integers(0, 99),
)
def test_the_sum_is_exact(key: Literal["group", "holder"], bits: int, numbers: int, ids: list[int], seed: int) -> None:
    own = vectors(ids, numbers, bits, seed)
    result, _ = run_protocol(CkksAggregation(bits=bits, key_holders=key), own, KEY)
    assert result["sum"].tolist() == plain_sum(own, ids, bits).tolist()
    assert result["ids"].tolist() == sorted(ids)


@both
def test_it_is_a_protocol(key: Literal["group", "holder"]) -> None:
    protocol, own = CkksAggregation(key_holders=key), vectors(IDS, 30, 32)
    assert messages_can_travel(protocol, own) == "messages can travel"
    assert survives_dropouts(protocol, own) == "says so where too many drop out"
    sums = [run_protocol(protocol, own, KEY)[0]["sum"] for _ in range(2)]
    assert torch.equal(*sums)


@pytest.mark.parametrize("step", range(4))
def test_the_sum_is_of_those_whose_vectors_arrived(step: int) -> None:
    own = vectors(IDS, 30, 32)
    result, _ = run_protocol(CkksAggregation(), own, KEY, lambda at, id: at >= step and id in (5, 9))
    in_sum = [1, 6] if step <= 2 else list(IDS)
    assert result["ids"].tolist() == in_sum
    assert result["sum"].tolist() == plain_sum(own, in_sum, 32).tolist()


@sets
@pytest.mark.parametrize("clients", [2, 10, slow(100)])
def test_the_largest_sums_that_are_promised_are_exact(parameters: CkksParameters, clients: int) -> None:
    """All clients at the end of the range, in all slots, some slots or with alternating signs."""
    bits = parameters.sum_bits(clients) - (clients - 1).bit_length()
    protocol = CkksAggregation(bits=min(bits, 45))
    if protocol.parameters(clients) != parameters:
        pytest.skip("a cheaper set holds them")
    public, private = protocol.draw_keys(clients, secrets.token_bytes)
    half = 1 << protocol.bits - 1
    vector = torch.full((parameters.slots + 7,), half - 1)
    vector[::3] = half  # the most negative
    vector[1::7] = 0
    uploads = {i: protocol.encrypt(public, vector, clients, secrets.token_bytes) for i in range(clients)}
    total = protocol.add(public, uploads, len(vector), clients)
    residues = protocol.decrypt(public, private, total, len(vector), clients)
    assert residues.tolist() == (vector * clients & (1 << protocol.bits) - 1).tolist()


@sets
@pytest.mark.parametrize("clients", [1, 8])
def test_errors_are_as_large_as_computed(parameters: CkksParameters, clients: int) -> None:
    """The deviation in the module's docstring, and Laplace's tail: beyond 3 deviations 1.4 % (a normal has 0.3 %)."""
    scale_bits = parameters.scale_bits(clients)
    values = np.random.default_rng(clients).integers(-(2**30), 2**30, (4, parameters.slots)).astype(float)
    errors = []
    for row in values:
        terms = [ckks_context.encrypt(context(parameters), row[None], scale_bits)[0] for _ in range(clients)]
        total = ckks_context.add(context(parameters), terms, parameters.slots, scale_bits, ["a"] * clients)
        (sums,) = ckks_context.decrypt(context(parameters), [total], parameters.slots, scale_bits)
        errors.append(sums - clients * row)
    deviation = parameters.deviation(clients) / 2**scale_bits
    assert np.std(errors) == pytest.approx(deviation, rel=0.1)
    assert np.mean(np.abs(errors) > 3 * deviation) == pytest.approx(math.exp(-3 * math.sqrt(2)), rel=0.4)
    assert 32 * deviation <= 0.5
    assert np.abs(errors).max() < 16 * deviation  # once in 10^9


def test_what_would_be_rounded_is_refused_with_advice() -> None:
    assert CkksAggregation(bits=32).parameters(128).degree == 4096
    assert CkksAggregation(bits=32).parameters(1000).degree == 8192
    assert CkksAggregation(bits=36).parameters(1000).degree == 8192
    with pytest.raises(ConfigError, match=r"37 bits each. Use at most 36 bits, or protocol = 'paillier'"):
        CkksAggregation(bits=37).parameters(1000)


@sets
def test_parameters_keep_to_the_standard_for_128_bits(parameters: CkksParameters) -> None:
    """HomomorphicEncryption.org's table for ternary keys: the largest modulus, all primes together."""
    assert sum(parameters.prime_bits) <= {4096: 109, 8192: 218}[parameters.degree]


@pytest.mark.parametrize(("bits", "most"), [(32, 32.2), (39, 64.2)])
def test_a_number_takes_32_bytes_or_64(bits: int, most: float) -> None:
    protocol = CkksAggregation(bits=bits)
    public, _ = protocol.draw_keys(100, secrets.token_bytes)
    upload = protocol.encrypt(public, torch.arange(8192), 100, secrets.token_bytes)
    assert most - 0.3 < wire_bytes(upload) / 8192 < most


def test_the_public_part_has_no_private_key() -> None:
    protocol = CkksAggregation()
    public, private = protocol.draw_keys(3, secrets.token_bytes)
    sent, own = public["context"].numpy().tobytes(), private
    assert not ckks_context.load_context(sent, PARAMETERS[0], private=False).has_secret_key()
    assert ckks_context.load_context(own, PARAMETERS[0], private=True).has_secret_key()
    for data, due in ((sent, True), (own, False)):
        with pytest.raises(ProtocolError, match="a private key where a public one was due"):
            ckks_context.load_context(data, PARAMETERS[0], private=due)


@both
def test_the_private_key_never_passes_the_server_in_clear(
    key: Literal["group", "holder"], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[bytes] = []
    draw = CkksAggregation.draw_keys

    def watched(self: CkksAggregation, *given: Any) -> tuple[Tree, bytes]:
        public, private = draw(self, *given)
        drawn.append(private)
        return public, private

    monkeypatch.setattr(CkksAggregation, "draw_keys", watched)
    _, transcript = run_protocol(CkksAggregation(key_holders=key), vectors(IDS, 30, 32), KEY)
    messages = [m for steps in (transcript.down, transcript.up) for step in steps for m in step.values()]
    seen = b"|".join(x.numpy().tobytes() for m in messages for _, x in paths(m.body))
    assert drawn[0][1000:1100] not in seen
    assert drawn[0][-100:] not in seen


def test_a_key_of_other_parameters_is_refused() -> None:
    large = CkksAggregation(bits=44).draw_keys(3, secrets.token_bytes)[0]
    with pytest.raises(ProtocolError, match="not of the parameters agreed on, N = 4096"):
        CkksAggregation(bits=8).encrypt(large, torch.arange(3), 3, secrets.token_bytes)


@pytest.mark.parametrize("numbers", [3, 2048])
def test_a_sum_under_another_key_is_refused(numbers: int) -> None:
    protocol = CkksAggregation()
    public, _ = protocol.draw_keys(3, secrets.token_bytes)
    _, other = protocol.draw_keys(3, secrets.token_bytes)
    upload = protocol.encrypt(public, torch.arange(numbers), 3, secrets.token_bytes)
    with pytest.raises(ProtocolError, match="decrypts to no integers"):
        protocol.decrypt(public, other, upload, numbers, 3)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: {**x, "lengths": x["lengths"] - 1},
        lambda x: {**x, "lengths": x["lengths"][:0]},
        lambda x: {**x, "data": x["data"][:-1]},
        lambda x: {"data": x["data"][:-1], "lengths": x["lengths"] - 1},
        lambda x: {"data": x["data"][:5], "lengths": torch.tensor([5])},
        lambda x: {**x, "data": torch.zeros_like(x["data"])},
        lambda x: {**x, "data": x["data"].long()},
        lambda x: {"data": x["data"]},
    ],
)
def test_what_is_no_ciphertext_is_refused_with_its_sender(change: Any) -> None:
    protocol = CkksAggregation()
    public, _ = protocol.draw_keys(3, secrets.token_bytes)
    upload = protocol.encrypt(public, torch.arange(3), 3, secrets.token_bytes)
    with pytest.raises(ProtocolError, match="client 4: "):
        protocol.add(public, {3: upload, 4: change(upload)}, 3, 3)


def test_a_ciphertext_of_another_scale_is_refused() -> None:
    """It would be added as if it were not: the sum of the others with 2^3 times too much of it."""
    protocol = CkksAggregation()
    public, _ = protocol.draw_keys(3, secrets.token_bytes)
    upload = protocol.encrypt(public, torch.arange(3), 3, secrets.token_bytes)
    other = protocol.encrypt(public, torch.arange(3), 100, secrets.token_bytes)
    with pytest.raises(ProtocolError, match=r"client 4: sent .* no ciphertext"):
        protocol.add(public, {3: upload, 4: other}, 3, 3)


@few_examples
@given(st.data())
def test_hostile_bytes_give_a_protocol_error_or_a_ciphertext(data: st.DataObject) -> None:
    parameters = PARAMETERS[0]
    scale_bits = parameters.scale_bits(3)
    good = ckks_context.encrypt(context(parameters), np.ones((1, parameters.slots)), scale_bits)[0]
    for _ in range(20):
        changed = bytearray(good)
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.one_of(st.integers(0, 140), st.integers(0, len(good) - 1)))
            changed[at] = data.draw(st.integers(0, 255))
        if data.draw(st.booleans()):
            changed = changed[: data.draw(st.integers(0, len(changed)))]
            changed[8:16] = len(changed).to_bytes(8, "little")  # a length that is right again
        try:
            ckks_context.load_ciphertext(context(parameters), bytes(changed), parameters.slots, scale_bits, "x")
        except ProtocolError as e:
            assert "no ciphertext" in str(e)  # noqa: PT017


def test_security_says_who_has_the_key_and_what_is_hard() -> None:
    group = CkksAggregation().security(10)
    assert group.level == 2
    assert "Every client has the private key" in group.assumes
    assert "N = 4096 and a modulus of 109 bits" in group.assumes
    assert "One client has" in replace(CkksAggregation(), key_holders="holder").security(10).assumes


def test_a_key_that_is_shared_is_refused_with_advice() -> None:
    with pytest.raises(ConfigError, match=r"key_holders: 'shared' is not for ckks. Use 'group', 'holder'"):
        CkksAggregation(key_holders="shared")  # type: ignore[arg-type]


def test_without_tenseal_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tenseal", None)
    with pytest.raises(ConfigError, match=r"ckks: needs tenseal. Run `pip install 'atoll\[secure\]'`"):
        CkksAggregation()


def test_a_million_numbers_are_wrong_less_than_once_in_a_billion_rounds() -> None:
    """With what float64 leaves of half a step at the largest sums."""
    deviations = min(0.47 / (p.deviation(m) / 2 ** p.scale_bits(m)) for p in PARAMETERS for m in range(2, 2000))
    assert math.exp(-math.sqrt(2) * deviations) * 1e6 * 1e9 < 1e-3
