"""What is encoded is decoded to the same bits, and lengths are known before."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll import tree
from atoll.errors import WireError
from atoll.wire import SERVER, Layout, Part, decode, encode, lengths
from tests.support.payloads import payloads


def bytes_of(x: torch.Tensor) -> bytes:
    return x.flatten().numpy().tobytes() if x.dtype != torch.bfloat16 else bytes_of(x.contiguous().view(torch.int16))


def sent(values: tree.Tree, **encodings: object) -> bytes:
    return encode(Layout.of(values, **encodings), values, kind="update", round=1, sender=2)


@given(payloads(), st.integers(0, 2**32 - 1), st.integers(0, SERVER))
def test_what_is_encoded_is_decoded_to_the_same_bits(drawn, round, sender):
    values, layout = drawn
    payload = decode(encode(layout, values, kind="masked_input", round=round, sender=sender))
    assert (payload.kind, payload.round, payload.sender, payload.layout) == ("masked_input", round, sender, layout)
    assert tree.map(lambda x: (x.shape, x.dtype, bytes_of(x)), payload.tree) == tree.map(
        lambda x: (x.shape, x.dtype, bytes_of(x)), values
    )


@given(payloads(plain=True))
def test_the_length_is_known_to_the_byte_without_encoding(drawn):
    values, layout = drawn
    length = layout.length(values)
    assert length.dtype == torch.int64
    assert length.item() == len(encode(layout, values, kind="update", round=0, sender=0))
    assert layout.fixed_bytes in ((None,) if any(p.kind == "sorted" for p in layout.parts) else (length.item(),))


@pytest.mark.parametrize("limit", [400, 10_000, 10**6])
def test_lengths_of_a_stack_are_those_of_its_rows(limit):
    chosen = torch.stack([torch.randperm(limit, generator=torch.Generator().manual_seed(i))[:300] for i in range(8)])
    stack = {"values": torch.randn(8, 300), "indices": chosen.sort(dim=1).values}
    layout = Layout.of(tree.rows(stack, 0), indices={"kind": "sorted", "limit": limit})
    rows = [len(encode(layout, tree.rows(stack, i), kind="update", round=0, sender=i)) for i in range(8)]
    assert lengths(layout, stack).tolist() == rows
    assert limit == 400 or len(set(rows)) > 1  # else this would show nothing


def test_lengths_of_a_stack_whose_coder_has_no_formula_are_found_by_encoding():
    stack = {"levels": torch.stack([torch.zeros(4000), torch.arange(4000) % 16]).to(torch.uint8)}
    layout = Layout.of(tree.rows(stack, 0), levels={"kind": "bits", "bits": 4, "coder": "entropy"})
    assert not layout.measurable
    assert layout.fixed_bytes is None
    rows = [len(encode(layout, tree.rows(stack, i), kind="update", round=0, sender=i)) for i in range(2)]
    assert lengths(layout, stack).tolist() == rows
    with pytest.raises(WireError, match=r"Use wire\.lengths"):
        layout.length(tree.rows(stack, 0))


def test_lengths_of_a_stack_of_fixed_layouts_are_all_the_same():
    stack = {"w": torch.randn(3, 5)}
    layout = Layout.of({"w": torch.zeros(5)})
    assert lengths(layout, stack).tolist() == [layout.fixed_bytes] * 3


def test_one_percent_by_value_and_int64_index_is_a_thirty_third():
    dense = torch.randn(1_600_000)
    chosen = torch.randperm(len(dense))[:16_000].sort().values
    ratio = 4 * len(dense) / len(sent({"values": dense[chosen], "indices": chosen}))
    assert 33.0 < ratio < 33.4
    rice = sent({"values": dense[chosen], "indices": chosen}, indices={"kind": "sorted", "limit": len(dense)})
    assert 4 * len(dense) / len(rice) > 78  # 8.1 bits instead of 64


def test_patterns_name_many_tensors_and_a_path_goes_before_them():
    values = {"a": {"signs": torch.ones(3).bool()}, "b": {"signs": torch.ones(3).bool()}}
    layout = Layout.of(values, **{"*/signs": {"kind": "bits", "bits": 1}, "b/signs": {"coder": "zstd"}})
    assert [(p.kind, p.coder) for p in layout.parts] == [("bits", "plain"), ("raw", "zstd")]


def test_decoded_tensors_are_ones_own():
    data = sent({"w": torch.ones(3)})
    decode(data).tree["w"].add_(1)
    assert decode(data).tree["w"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("values", "encodings", "words"),
    [
        ({"w": torch.ones(2, dtype=torch.complex64)}, {}, "w: torch.complex64 does not travel"),
        ({"a/b": torch.ones(2)}, {}, "a/b: a name with '/'"),
        ({"w": torch.ones(2)}, {"v": {"coder": "zstd"}}, "v: no tensor has this path"),
        ({"delta": torch.ones(2)}, {"detla": {"coder": "zstd"}}, "Did you mean 'delta'"),
        ({"w": torch.ones(2)}, {"w": {"kind": "bits", "bits": 1}}, "w: 1 bits of float32. It holds no whole numbers"),
        ({"w": torch.ones(2).long()}, {"w": {"kind": "bits", "bits": 33}}, "33 bits of int64. It holds 1 to 32"),
        ({"w": torch.ones(2).to(torch.int8)}, {"w": {"kind": "bits", "bits": 8}}, "It holds 1 to 7"),
        ({"w": torch.tensor([4])}, {"w": {"kind": "bits", "bits": 2}}, "values from 4 to 4. Its layout says 0 to 3"),
        ({"w": torch.tensor([-1])}, {"w": {"kind": "bits", "bits": 2}}, "values from -1"),
        ({"w": torch.tensor([3, 3])}, {"w": {"kind": "sorted", "limit": 4}}, "Sort them, and send each once"),
        ({"w": torch.tensor([3, 4])}, {"w": {"kind": "sorted", "limit": 4}}, "says 0 to 3"),
        ({"w": torch.tensor([3, 4])}, {"w": {"kind": "sorted", "limit": 1}}, "one row of distinct ones"),
        ({"w": torch.zeros(1)}, {"w": {"kind": "sorted", "limit": 1}}, "float32 does not hold positions"),
        ({"w": torch.ones(1).int()}, {"w": {"kind": "sorted", "limit": 2**40}}, "int32 does not hold positions"),
        ({"w" * 1025: torch.ones(1)}, {}, "its path has over 1024 bytes"),
        ({"w": torch.ones(1).long()}, {"w": {"kind": "bits", "bits": 13, "coder": "entropy"}}, "bits up to 12"),
        ({"w": torch.ones(1)}, {"w": {"coder": "entropy"}}, "entropy is for bits up to 12"),
        ({"w": torch.ones(1)}, {"w": {"coder": "gzip"}}, "coder 'gzip' is unknown. Use one of plain"),
        ({"w": torch.ones(1)}, {"w": {"bits": 3}}, "a raw part has no bits"),
    ],
)
def test_what_cannot_travel_is_refused_with_advice(values, encodings, words):
    with pytest.raises(WireError, match=words.replace("(", r"\(")):
        sent(values, **encodings)


def test_a_tree_that_is_not_of_the_layout_is_refused():
    layout = Layout.of({"w": torch.ones(3)})
    for other in ({"w": torch.ones(4)}, {"w": torch.ones(3).double()}, {"v": torch.ones(3)}, {}):
        with pytest.raises(WireError, match=r"^[wv]: .*Layout.of\(tree\)"):
            encode(layout, other, kind="update", round=0, sender=0)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"kind": "Update"}, "kind: 'Update'"),
        ({"kind": "u" * 25}, "1 to 24 letters"),
        ({"round": -1}, "round: -1 does not fit in 32 bits"),
        ({"sender": 1 << 64}, "does not fit in 64 bits"),
    ],
)
def test_an_envelope_that_does_not_fit_is_refused(changed, words):
    with pytest.raises(WireError, match=words):
        encode(Layout.of({}), {}, **{"kind": "update", "round": 0, "sender": 0, **changed})


def test_a_layout_of_too_many_parts_or_too_long_a_header_is_refused():
    x = torch.zeros(())
    with pytest.raises(WireError, match="Up to 16384 travel in one payload"):
        Layout.of({str(i): x for i in range(16_385)})
    with pytest.raises(WireError, match="its header has"):
        assert Layout.of({f"{i:1000}": x for i in range(1100)}).header


def test_what_is_empty_travels_with_any_coder():
    for coder in ("plain", "entropy", "zstd"):
        x = {"x": torch.zeros(0, 3, dtype=torch.uint8)}
        data = sent(x, x={"kind": "bits", "bits": 4, "coder": coder})
        assert decode(data).tree["x"].shape == (0, 3)


def test_two_parts_of_one_path_are_refused():
    part = Part("a", (), "float32")
    for other in ("a", "a/b"):
        with pytest.raises(WireError, match="two parts have one path, or one lies inside another"):
            Layout((part, Part(other, (), "float32")))
