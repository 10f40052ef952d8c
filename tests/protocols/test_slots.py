"""Residues in slots of large integers: back as they were, and sums without a carry into the next slot."""

import secrets

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import ConfigError, ProtocolError
from atoll.protocols.slots import Slots, pack_residues, unpack_residues

bits = st.integers(2, 62)


@st.composite
def packed_residues(draw: st.DrawFn) -> tuple[Slots, np.ndarray]:
    width = draw(bits)
    clients = draw(st.integers(1, 300))
    slots = Slots(width, clients, draw(st.integers(136, 600)), draw(st.sampled_from([0, 64])), draw(st.booleans()))
    residues = draw(st.lists(st.integers(0, 2**width - 1), max_size=40))
    return slots, np.array(residues, np.int64)


def integers(packed: np.ndarray) -> list[int]:
    return [int.from_bytes(row.tobytes(), "little") for row in packed]


def rows(slots: Slots, numbers: list[int]) -> np.ndarray:
    data = b"".join(number.to_bytes(slots.integer_bytes, "little") for number in numbers)
    return np.frombuffer(data, np.uint8).reshape(-1, slots.integer_bytes)


@given(packed_residues())
def test_unpacking_gives_back_what_was_packed(case: tuple[Slots, np.ndarray]) -> None:
    slots, residues = case
    packed = slots.pack(residues, secrets.token_bytes)
    assert all(number < 1 << slots.capacity_bits for number in integers(packed))
    assert slots.unpack(packed, len(residues)).tolist() == residues.tolist()


@given(packed_residues())
def test_integers_of_all_clients_add_up_slot_by_slot(case: tuple[Slots, np.ndarray]) -> None:
    slots, residues = case
    residues[::2] = (1 << slots.bits) - 1  # the largest sums there are
    packs = [integers(slots.pack(residues, secrets.token_bytes)) for _ in range(slots.clients)]
    total = [sum(column) for column in zip(*packs, strict=True)]
    assert all(number < 1 << slots.capacity_bits for number in total)
    expected = [slots.clients * int(x) % (1 << slots.bits) for x in residues]
    assert slots.unpack(rows(slots, total), len(residues)).tolist() == expected


@st.composite
def bounded_sums(draw: st.DrawFn) -> tuple[int, np.ndarray]:
    """(clients, numbers) whose sums are the last row's: the others go beyond all bounds and come back."""
    width, numbers = draw(bits), draw(st.integers(1, 30))
    half = 1 << width - 1
    row = st.lists(st.integers(1 - half, half - 1), min_size=numbers, max_size=numbers)
    there = draw(st.lists(row, max_size=5))
    last = draw(st.lists(st.sampled_from([-half, half - 1, 0, -1]), min_size=numbers, max_size=numbers))
    return width, np.array([*there, *([-x for x in r] for r in there), last], dtype=object)


@given(bounded_sums(), st.booleans())
def test_sums_that_fit_need_no_guard_bits_however_large_their_terms_are(
    case: tuple[int, np.ndarray], one: bool
) -> None:
    width, terms = case
    slots = Slots(width, len(terms), 136, packed=not one, guarded=False)
    modulus = 1 << slots.capacity_bits + 1  # a plaintext space of one bit more than a plaintext
    residues = np.array(terms % (1 << width), dtype=np.int64)
    plaintexts = [
        [(m - slots.centre) % modulus for m in integers(slots.pack(r, secrets.token_bytes))] for r in residues
    ]
    total = [(sum(column) + slots.centre) % modulus for column in zip(*plaintexts, strict=True)]
    assert slots.unpack(rows(slots, total), terms.shape[1]).tolist() == (terms.sum(0) % (1 << width)).tolist()


def test_without_guard_bits_a_slot_is_as_wide_as_a_residue() -> None:
    assert Slots(32, 100, 2047, guarded=False).per_integer == 63
    assert Slots(33, 100, 2047, guarded=False).per_integer == 62


def test_a_slot_is_as_wide_as_the_largest_sum_and_no_wider() -> None:
    for clients in (1, 2, 3, 4, 5, 100, 128, 129):
        assert Slots(32, clients, 2047).width == max(32, ((2**32 - 1) * clients).bit_length())


def test_forty_bits_a_slot_put_51_numbers_into_a_plaintext_of_2048_bits() -> None:
    assert Slots(33, 100, 2047).width == 40
    assert Slots(33, 100, 2047).per_integer == 51
    assert Slots(33, 100, 2047, packed=False).per_integer == 1


def test_blinding_hides_how_often_a_sum_went_round() -> None:
    """Without it the sum of residues tells how many were large; with it the same residues give other integers."""
    clear, blind = Slots(8, 3, 255), Slots(8, 3, 255, blinding_bits=64)
    residues = np.array([200, 3])
    assert integers(clear.pack(residues, secrets.token_bytes)) == [200 + (3 << 10)]
    tops = {integers(blind.pack(residues, secrets.token_bytes))[0] >> 8 & (1 << 64) - 1 for _ in range(50)}
    assert len(tops) == 50
    assert np.mean([top >> 63 for top in tops]) == pytest.approx(0.5, abs=0.4)


def test_a_sum_that_no_plaintext_holds_is_refused_with_advice() -> None:
    with pytest.raises(
        ConfigError, match=r"secure.fixed_point.bits: a sum of 5 clients takes 65 bits, a plaintext has 64. Use"
    ):
        Slots(62, 5, 64)


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("blinding", [0, 16])
@given(bit=st.integers(0, 255))
def test_a_slot_that_holds_nothing_says_whether_an_integer_was_changed(guarded: bool, blinding: int, bit: int) -> None:
    """Of a ciphertext that was changed on its way the plaintext is any number: what must be empty is not."""
    slots = Slots(8, 3, 255, blinding if guarded else 0, guarded=guarded)
    packed = slots.pack(np.arange(2), secrets.token_bytes).copy()
    if bit >= 8 * packed.shape[1]:
        return
    packed[0, bit // 8] ^= 1 << bit % 8
    slot, place = divmod(bit, slots.width)
    if 2 <= slot < slots.per_integer and (place < 8 or not slots.blinding_bits):
        with pytest.raises(ProtocolError, match="what must be empty is not"):
            slots.unpack(packed, 2)
    elif slot < slots.per_integer:
        assert len(slots.unpack(packed, 2)) == 2


def test_integers_of_another_layout_are_refused() -> None:
    slots = Slots(8, 3, 64)
    with pytest.raises(ProtocolError, match="Both sides need the same number of clients"):
        slots.unpack(slots.pack(np.arange(10), secrets.token_bytes)[:1], 10)


@given(bits, st.data())
def test_residues_travel_in_as_many_bits_as_they_have(width: int, data: st.DataObject) -> None:
    residues = np.array(data.draw(st.lists(st.integers(0, 2**width - 1), max_size=30)), np.int64)
    packed = pack_residues(residues, width)
    assert len(packed) == -(-len(residues) * width // 8)
    assert unpack_residues(packed, width, len(residues)).tolist() == residues.tolist()
    with pytest.raises(ProtocolError):
        unpack_residues(packed, width, len(residues) + 8)
