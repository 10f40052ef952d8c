"""Does an engine do what the loop does?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from atoll import tree
from atoll.algorithms import FedAvg, Scaffold, sgd
from atoll.core import Algorithm, Chain, Trained
from atoll.engines import Loop, cpu_threads
from atoll.reducers import Collect
from atoll.testing.assertions import need, need_close, need_same
from atoll.testing.harness import EngineFactory, Federation, federation, some, train
from atoll.testing.problems import SIZES, Problem, network, quadratics
from atoll.transforms import TopK
from atoll.tree import Tree


@cpu_threads(1)
def check_engine(factory: EngineFactory) -> list[str]:
    """The names of the checks that an engine passes, or a ConformanceError that says which one it does not.

    `factory(data, store)` makes the engine; a class such as `Vector` will do.

    >>> from atoll.engines import Vector
    >>> "drops clients that are not finite" in check_engine(Vector)
    True
    """
    return [check(factory) for check in CHECKS]


def agrees_with_the_loop(factory: EngineFactory) -> str:
    """Models, memories and losses, with ragged clients, partial batches, absent clients, memory and feedback."""
    for problem, algorithm, chain in (
        (quadratics(), _scaffold(quadratics()), Chain()),
        (network(), _scaffold(network()), Chain((TopK(0.3),))),
        (network(), FedAvg(network().task, 0.05, sgd(momentum=0.9)), Chain()),
    ):
        ours, loop = (train(problem, algorithm, 3, some(5), e, chain) for e in (factory, Loop))
        cause = "padding that is trained on, or steps after a client has finished"
        need_close(ours.server, loop.server, "agrees with the loop", cause)
        need_close(ours.rows(), loop.rows(), "agrees with the loop, memory", cause)
        a, b = (f.engine.run(f.request([5, 0, 3], client_state="read")) for f in (ours, loop))
        cause = "losses in the order in which clients were trained instead of that of the cohort"
        need_close({"loss": a.loss}, {"loss": b.loss}, "losses are in the order of the cohort", cause)
    return "agrees with the loop"


def same_twice(factory: EngineFactory) -> str:
    """Bit for bit, without a change to what the request holds."""
    made = federation(network(), _scaffold(network()), factory)
    request = made.request([4, 1, 3], client_state="read")
    held = {"sent": request.sent, "settings": request.settings, "columns": made.problem.columns}
    before = tree.digest(held)
    a, b = (made.engine.run(request).partial for _ in range(2))
    need_same(a.value, b.value, "two runs are equal bit for bit", "a sum in the order in which workers finish")
    need(
        before == tree.digest(held),
        "leaves the request alone",
        "a change in place",
        "no change",
        "an operation in place",
    )
    return "two runs are equal bit for bit"


def drops_what_is_not_finite(factory: EngineFactory) -> str:
    """A client whose loss or update is not a number is left out, named, and keeps its memory."""
    bad = replace(quadratics(), columns=_broken(quadratics(), 3))
    made = federation(bad, _scaffold(bad), factory, reducer=Collect())
    result = made.engine.run(made.request([5, 3, 0]))
    flags, order = result.finite.tolist(), sorted(result.order.tolist())
    need(flags == [True, False, True], "flags clients that are not finite", flags, [True, False, True], "no test")
    need(order == [0, 2], "order holds the clients that were kept", order, [0, 2], "positions in a sorted stack")
    fresh = federation(quadratics(), _scaffold(quadratics()), Loop, reducer=Collect())
    truth = fresh.engine.run(fresh.request([5, 0]))
    cause = "an update that is not finite in the sum (nan times 0 is nan)"
    need_close(_in_order(result), _in_order(truth), "the others are as if it had not been there", cause)
    touched = made.store.touched.tolist()
    wanted = [c in (0, 5) for c in range(len(SIZES))]
    need(touched == wanted, "memory is not written for it", touched, wanted, "memory written before the test")
    far = federation(quadratics(), FedAvg(quadratics().task, 3e38), factory)
    empty = far.engine.run(far.request([0]))  # one step: the loss is finite, what comes of it is not
    flags = empty.finite.tolist()
    need(flags == [False], "flags updates that are not finite", flags, [False], "a test of the loss alone")
    zero = far.program.reducer.zero(far.program.like)
    cause = "a partial aggregate that holds what was left out, or none at all"
    need_same(_fields(empty.partial), _fields(zero), "with nobody left the aggregate is the identity", cause)
    absent = far.engine.run(far.request([]))
    need_same(_fields(absent.partial), _fields(zero), "a request without clients gives the identity", cause)
    return "drops clients that are not finite"


def sends_to_each(factory: EngineFactory) -> str:
    """`per_client`: every client is sent a model of its own."""
    found = []
    for engine in (factory, Loop):
        made = federation(network(), FedAvg(network().task, 0.05), engine, reducer=Collect())
        request = made.request([2, 5, 0, 3])
        own = tree.map(lambda x: torch.stack([x * (1 + 0.1 * i) for i in range(4)]), request.sent)
        found.append(_in_order(made.engine.run(replace(request, sent=own, per_client=True))))
    cause = "rows of `sent` that do not follow the order in which clients are trained"
    need_close(found[0], found[1], "sends each client its own", cause)
    return "sends each client its own"


def repeats_a_client(factory: EngineFactory) -> str:
    """A client drawn twice (with replacement) does the same work twice: nothing depends on which copy came first."""
    made = federation(quadratics(), _scaffold(quadratics()), factory, reducer=Collect())
    made.engine.run(made.request([1, 3]))  # so that there is a state to read
    once = _copy(made, factory)
    result = made.engine.run(made.request([3, 1, 3]))
    twice = _in_order(result)
    cause = "a copy that reads the memory which the other one has just written"
    need_close(tree.rows(twice, 0), tree.rows(twice, 2), "a client drawn twice does the same twice", cause)
    once.engine.run(once.request([3, 1]))
    need_close(made.rows(), once.rows(), "a client drawn twice remembers one turn", cause)
    return "a client drawn twice does the same twice"


CHECKS: tuple[Callable[[EngineFactory], str], ...] = (
    agrees_with_the_loop,
    same_twice,
    drops_what_is_not_finite,
    sends_to_each,
    repeats_a_client,
)


def _scaffold(problem: Problem) -> Algorithm:
    return Scaffold(problem.task, 0.05, problem.partition.size)


def _broken(problem: Problem, client: int) -> Tree:
    y = problem.columns["y"].clone()
    y[problem.partition.of(client)[-1]] = float("nan")
    return {**problem.columns, "y": y}


def _copy(made: Federation, factory: EngineFactory) -> Federation:
    """The same federation with client state of its own."""
    other = federation(made.problem, made.algorithm, factory, made.program.chain, made.program.reducer)
    other.engine.load(made.engine.state().pieces())
    return other


def _fields(partial: Any) -> Tree:
    return {"value": partial.value, "weight": partial.weight, "count": partial.count}


def _in_order(result: Trained) -> Tree:
    """The updates that were kept, in the order of the cohort."""
    updates = result.partial.updates
    back = torch.argsort(result.order)
    return {"value": tree.rows(updates.value, back), "weight": updates.weight[back]}
