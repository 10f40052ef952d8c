"""Trees: nested dicts of tensors."""

import doctest

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll import tree
from atoll.tree import Tree


def sample(scale: float = 1.0) -> Tree:
    draw = torch.Generator().manual_seed(0)
    return {
        "params": {"w": scale * torch.randn(2, 3, generator=draw), "b": scale * torch.randn(3, generator=draw)},
        "empty": {},
        "n": torch.tensor(4.0) * scale,
    }


def by_hand(a: Tree, f: object) -> list[list[float]]:
    return [f(x).flatten().tolist() for x in tree.leaves(a)]  # type: ignore[operator]


def test_the_examples_run() -> None:
    assert doctest.testmod(tree).failed == 0


def test_leaves_come_in_the_order_in_which_they_were_put() -> None:
    assert [p for p, _ in tree.paths(sample())] == ["params/w", "params/b", "n"]
    assert [tuple(x.shape) for x in tree.leaves(sample())] == [(2, 3), (3,), ()]


def test_arithmetic_is_leaf_by_leaf() -> None:
    a, b = sample(), sample(3.0)
    assert by_hand(tree.add(a, a), lambda x: x) == by_hand(a, lambda x: 2 * x)
    assert float(tree.norm(tree.sub(b, tree.scale(a, 3.0)))) == 0.0
    assert float(tree.norm(tree.sub(b, a))) == pytest.approx(2 * float(tree.norm(a)))
    for by in (0.5, torch.tensor(0.5)):
        for found, want in (
            (tree.scale(a, by), tree.map(lambda x: x * 0.5, a)),
            (tree.add_scaled(a, b, by), tree.map(lambda x, y: x + 0.5 * y, a, b)),
        ):
            for x, y in zip(tree.leaves(found), tree.leaves(want), strict=True):
                torch.testing.assert_close(x, y)
    assert all(float(x.abs().sum()) == 0 for x in tree.leaves(tree.zeros_like(a)))


def test_nothing_is_changed_in_place() -> None:
    a, b = sample(), sample(2.0)
    before = tree.digest(a), tree.digest(b)
    for f in (tree.add, tree.sub, lambda x, y: tree.add_scaled(x, y, torch.tensor(0.3))):
        f(a, b)
    tree.scale(a, 3.0)
    tree.where(torch.tensor(True), a, b)
    assert before == (tree.digest(a), tree.digest(b))


def test_the_norm_is_that_of_one_long_vector() -> None:
    a = sample()
    long = torch.cat([x.flatten() for x in tree.leaves(a)])
    assert float(tree.norm(a)) == pytest.approx(float(long.norm()), rel=1e-6)
    assert float(tree.dot(a, sample(2.0))) == pytest.approx(2 * float(long @ long), rel=1e-6)


def test_the_norm_of_large_numbers_does_not_overflow() -> None:
    assert float(tree.norm({"w": torch.full((4,), 1e30)})) == pytest.approx(2e30)


def test_the_norm_of_nothing_is_zero() -> None:
    assert float(tree.norm({})) == 0.0
    assert float(tree.norm({"buffers": {}})) == 0.0


def test_where_chooses_a_whole_tree() -> None:
    a, b = sample(), sample(2.0)
    assert tree.digest(tree.where(torch.tensor(True), a, b)) == tree.digest(a)
    assert tree.digest(tree.where(torch.tensor(False), a, b)) == tree.digest(b)


def test_rows_of_a_stack_are_what_was_stacked() -> None:
    a = sample()
    stacked = tree.stack(a, 3)
    assert tree.digest(tree.rows(stacked, 1)) == tree.digest(a)
    assert tree.rows(stacked, torch.tensor([0, 2]))["params"]["w"].shape == (2, 2, 3)
    joined = tree.cat([stacked, tree.rows(stacked, slice(0, 1))])
    assert joined["n"].tolist() == [4.0] * 4


def test_a_stack_takes_no_memory() -> None:
    a = sample()
    assert tree.stack(a, 1000)["params"]["w"].data_ptr() == a["params"]["w"].data_ptr()


def test_selecting_and_leaving_out_add_up() -> None:
    a = sample()["params"]
    assert tree.select(a, ("b",)).keys() == {"b"}
    assert {**tree.select(a, ("b",)), **tree.without(a, ("b",))}.keys() == a.keys()


def test_counts_numbers_and_bytes() -> None:
    assert tree.count(sample()) == 10
    assert tree.nbytes(sample()) == 40
    assert tree.nbytes({"x": torch.zeros(3, dtype=torch.float64)}) == 24


def test_trees_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="trees differ"):
        tree.add({"a": torch.ones(1)}, {"b": torch.ones(1)})


@pytest.mark.parametrize(
    "other",
    [
        {"a": torch.tensor([1.0, 3.0])},
        {"b": torch.tensor([1.0, 2.0])},
        {"a": torch.tensor([[1.0, 2.0]])},
        {"a": torch.tensor([1.0, 2.0], dtype=torch.float64)},
        {"a": torch.tensor([1.0, -0.0])},
        {"a": {"a": torch.tensor([1.0, 2.0])}},
    ],
)
def test_a_digest_sees_values_names_shapes_and_types(other: Tree) -> None:
    assert tree.digest({"a": torch.tensor([1.0, 2.0])}) != tree.digest(other)
    assert tree.digest(other) == tree.digest(tree.map(torch.clone, other))


def test_a_digest_does_not_depend_on_the_order_of_the_keys_or_on_layout() -> None:
    x, y = torch.randn(3, 4), torch.randn(2)
    assert tree.digest({"x": x, "y": y}) == tree.digest({"y": y, "x": x.T.contiguous().T})


@given(
    st.recursive(
        st.floats(-10, 10, width=32), lambda inner: st.dictionaries(st.text("ab", max_size=2), inner, max_size=3)
    )
)
def test_any_nesting_maps_to_itself(drawn: object) -> None:
    made = {"root": _tensors(drawn)}
    assert tree.digest(tree.map(lambda x: x, made)) == tree.digest(made)
    assert len(list(tree.paths(made))) == len(tree.leaves(made))


def _tensors(value: object) -> object:
    return {k: _tensors(v) for k, v in value.items()} if isinstance(value, dict) else torch.tensor(value)


def test_the_digest_of_large_columns_tells_values_names_shapes_and_types_apart_and_no_strides() -> None:
    x = torch.arange(300_003, dtype=torch.float32)  # more than a block, and no whole number of words
    seen = {tree.large_digest({"x": x})}
    assert tree.large_digest({"x": torch.stack([x, x], 1)[:, 1]}) in seen
    assert tree.large_digest({"x": torch.cat([x[:1], x])[1:]}) in seen  # begins in the middle of a word
    late = x.clone()
    late[-1] += 1
    swapped = torch.cat([x[262_144:], x[:262_144]])
    for other in ({"x": late}, {"y": x}, {"x": x[None]}, {"x": x.double()}, {"x": swapped}, {"x": x[:-1]}):
        seen.add(tree.large_digest(other))
    assert len(seen) == 7
