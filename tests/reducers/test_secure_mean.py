"""The mean through a protocol: the sum of residues, and a word where it is not."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from atoll import rng, tree
from atoll.core import Info, Server, Stack, Update
from atoll.errors import ProtocolError
from atoll.protocols import NEVER, AdditiveSharing, SecAgg, SecureAggregation
from atoll.reducers import SECURE, Mean, SecureMean
from atoll.transforms import SecureSum
from atoll.tree import Tree
from tests.support.summed_in_clear import SummedInClear

BITS = 20
LIKE: Tree = {"w": torch.zeros(2, 3, dtype=torch.float64), "b": torch.zeros((), dtype=torch.float64)}
KEY = rng.key("reduce")


@dataclass(frozen=True)
class Forgetful(SummedInClear):
    """Says that the first client is not in the sum."""

    def server(self, ids: Sequence[int], key: Tensor) -> Server:
        result = yield from SummedInClear.server(self, ids, key)
        return {**result, "ids": result["ids"][1:]}


def residues(clients: int) -> tuple[Update, Info]:
    """Integers between -500 and 500 as residues."""
    value = tree.map(
        lambda x: torch.randint(-500, 500, (clients, *x.shape), generator=torch.Generator().manual_seed(1)).double(),
        LIKE,
    )
    update = Update(tree.map(lambda x: torch.remainder(x, 2.0**BITS), value), torch.ones(clients))
    return update, Info(torch.arange(clients) * 3 + 1, *(torch.ones(clients) for _ in range(3)))


def lifted(reducer: SecureMean, clients: int, chunk: int = 2) -> Stack:
    update, info = residues(clients)
    parts = []
    for at in range(0, clients, chunk):
        here = slice(at, at + chunk)
        some = Update(tree.rows(update.value, here), update.weight[here])
        parts.append(reducer.lift(some, Info(*(x[here] for x in info)), KEY))
    return reducer.merge_all(parts, LIKE)


def plan(ids: list[int], lost_at: list[int], void: bool = False) -> Tree:
    facts = {"ids": ids, "lost_at": lost_at, "vector_step": 2, "round": 4, "void": void}
    return {"plan": {name: torch.tensor(fact) for name, fact in facts.items()}}


@pytest.mark.parametrize("protocol", [SummedInClear(BITS), SecAgg(bits=BITS)], ids=["in clear", "secagg"])
@pytest.mark.parametrize("clients", [1, 5])
def test_the_sum_is_that_of_the_mean(protocol: SecureAggregation, clients: int) -> None:
    if clients == 1 and isinstance(protocol, SecAgg):
        pytest.skip("one alone has no sum to hide in")
    reducer = SecureMean(protocol)
    total, state, said = reducer.finish(lifted(reducer, clients), {}, KEY)
    update, info = residues(clients)
    plain = Mean().lift(update, info, KEY)
    read = [SecureSum(BITS).server(x, {}, KEY)[0].value for x in (total, plain)]
    assert tree.digest(read[0]) == tree.digest(read[1])
    assert float(total.weight) == float(total.count) == clients
    assert state == {}
    assert said[SECURE]["costs"][0] > 0


def test_of_nobody_there_is_nothing() -> None:
    reducer = SecureMean(SummedInClear(BITS))
    total, _, _ = reducer.finish(reducer.zero(LIKE), plan([1, 2], [0, 0], void=True), KEY)
    assert float(total.weight) == 0
    assert [x.shape for x in tree.leaves(total.value)] == [x.shape for x in tree.leaves(LIKE)]


@pytest.mark.parametrize("ids", [[], [3]])
def test_a_void_round_ends_with_a_protocol_that_is_not_for_so_few(ids: list[int]) -> None:
    reducer = SecureMean(AdditiveSharing(bits=BITS))
    total, _, _ = reducer.finish(reducer.zero(LIKE), plan(ids, [NEVER] * len(ids), void=True), KEY)
    assert float(total.weight) == 0


def test_who_is_planned_and_holds_nothing_is_lost_on_the_way() -> None:
    """One before its vector; one whose update was no number, so that it never sends it."""
    reducer = SecureMean(SecAgg(bits=BITS, threshold=0.5))
    stack = lifted(reducer, 5)
    ids = [*stack.info.id.tolist(), 50, 51]
    total, _, _ = reducer.finish(stack, plan(ids, [NEVER] * 4 + [3, 1, NEVER]), KEY)
    assert float(total.count) == 5
    update, _ = residues(5)
    assert torch.equal(total.value["b"], torch.remainder(update.value["b"].sum(), 2.0**BITS))


def test_too_few_are_a_word_and_no_sum() -> None:
    reducer = SecureMean(SummedInClear(BITS))
    stack = lifted(reducer, 4)
    lost = plan(stack.info.id.tolist(), [2, 2, 2, NEVER])
    with pytest.raises(ProtocolError, match="round 5, secure aggregation: 1 of 4 are left"):
        reducer.finish(stack, lost, KEY)


def test_too_few_numbers_are_said_to_be_the_reason() -> None:
    reducer = SecureMean(SummedInClear(BITS, threshold=4))
    stack = lifted(reducer, 3)
    with pytest.raises(ProtocolError, match=r"must stay. The updates of 2 clients were no numbers: lower algorithm.lr"):
        reducer.finish(stack, plan([*stack.info.id.tolist(), 50, 51], [NEVER] * 5), KEY)


def test_a_sum_of_others_is_refused() -> None:
    reducer = SecureMean(Forgetful(BITS))
    with pytest.raises(ProtocolError, match=r"of other clients than those whose vectors arrived \(client 1\)"):
        reducer.finish(lifted(reducer, 3), {}, KEY)


def test_what_is_lifted_is_a_copy() -> None:
    reducer, (update, info) = SecureMean(SummedInClear(BITS)), residues(2)
    stack = reducer.lift(update, info, KEY)
    before = stack.info.id.clone()
    info.id.zero_()
    update.weight.zero_()
    assert torch.equal(stack.info.id, before)
    assert stack.updates.weight.sum() == 2
