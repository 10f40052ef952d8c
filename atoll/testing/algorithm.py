"""Does an algorithm keep the contract of its seven hooks, and what it claims beyond that?"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, get_args

import torch

from atoll import tree
from atoll.algorithms import LocalStatistics, Snapshot
from atoll.core import Algorithm, SecondModel, missing_hooks, resolve
from atoll.engines import Loop, Threads, cpu_threads
from atoll.errors import ConformanceError
from atoll.reducers import Collect
from atoll.testing.assertions import distance, need, need_close, need_same
from atoll.testing.harness import Cohorts, EngineFactory, Federation, some, stack, train
from atoll.testing.hooks import check_hooks
from atoll.testing.problems import Problem, flat, mirrored, network, optimum, quadratics
from atoll.testing.traits import check_traits, check_wrapper
from atoll.tree import Tree

Builder = Callable[..., Any]


@dataclass(frozen=True)
class AlgorithmCase:
    """An algorithm under test, and what is claimed of it."""

    builder: Builder
    options: dict[str, Any] = field(default_factory=dict)
    lr: float = 0.2
    exact: bool | None = None
    sampled: bool = True
    alone: bool | None = None
    control: str | None = None
    rounds: int = 60

    def on(self, problem: Problem, lr: float | None = None) -> Algorithm:
        """The algorithm for a problem, as a run would build it."""
        clients: dict[str, Any] = {"population": problem.partition.size, "public": problem.public()}
        given = {"task": problem.task, **clients, "largest_client": int(problem.partition.sizes.max())}
        wanted = inspect.signature(self.builder).parameters.values()
        names = {p.name for p in wanted}
        anything = any(p.kind is p.VAR_KEYWORD for p in wanted)
        chosen = {k: v for k, v in given.items() if k in names or anything}
        chosen |= {k: problem.second_model() for k in _second_models(self.builder) if k not in self.options}
        try:
            built: Algorithm = self.builder(**chosen, lr=lr or self.lr, **self.options)
        except TypeError as e:
            raise ConformanceError(
                f"can be built: {e}. A builder takes task, lr and, if it likes, population; its own options go to "
                "check_algorithm(builder, mu=0.1)."
            ) from e
        return built

    def train(self, problem: Problem, rounds: int, size: int = 0) -> Federation:
        """Train with everyone, or with `size` clients a round."""
        return train(problem, self.on(problem), rounds, some(size) if size else None)

    def trial(self, engine: EngineFactory = stack, cohorts: Cohorts | None = None) -> Federation:
        """Five rounds of a small network with three of six clients; gently, so that rounding does not grow."""
        return train(network(), self.on(network(), lr=self.lr / 4), 5, cohorts or some(3), engine)


@cpu_threads(1)
def check_algorithm(
    builder: Builder,
    *,
    exact: bool | None = None,
    sampled: bool = True,
    alone: bool | None = None,
    control: str | None = None,
    lr: float = 0.2,
    rounds: int = 60,
    **options: Any,
) -> list[str]:
    """The names of the checks that a class (or function) passes, or a ConformanceError that says which one it does not.

    `builder` takes `task`, `lr`, if it likes `population`, and `options`. What is claimed beyond the contract:
    `exact`: it reaches the true optimum however different the clients are, also when only some take part (unless
    `sampled=False`); False: it must not; None: the distance is only reported. `alone`: with one client it is plain
    SGD. `control`: the server's state and every client's have an entry of this name, and the server's is
    the mean over all clients. `rounds` is how long it may take to get to the optimum.

    >>> from atoll.algorithms import FedAvg
    >>> "learns" in check_algorithm(FedAvg, exact=False, alone=True)
    True
    """
    case = AlgorithmCase(builder, options, lr, exact, sampled, alone, control, rounds)
    return [name for check in CHECKS for name in [check(case)] if name]


def declares_its_traits(case: AlgorithmCase) -> str:
    """Before anything runs, and through every wrapper that a run may put around it."""
    algorithm = case.on(quadratics())
    missing = missing_hooks(algorithm)
    cause = "a hook that is spelt differently, or a class for an earlier version (memory is now client_state)"
    need(not missing, "has every hook and traits", f"no {', '.join(missing)}", "all of them", cause)
    check_traits(algorithm)
    for wrap in (LocalStatistics, Snapshot):
        check_wrapper(wrap, algorithm)
    return "declares its traits, and wrappers keep them"


def hooks_keep_their_word(case: AlgorithmCase) -> str:
    """Pure hooks, states that keep their structure, and nothing but tensors in them."""
    for problem in (quadratics(), network()):
        algorithm = resolve(case.on(problem), 0, [])
        check_hooks(algorithm, problem)
    return "hooks are pure and keep the structure of every state"


def same_on_every_engine(case: AlgorithmCase) -> str:
    """Loop, stack, chunks of the stack, and threads; ragged clients, partial batches, some of them absent."""
    truth = case.trial(Loop)
    cause = "a division by 0, or a rate that is too high; try lr=0.05"
    need(truth.finite, "trains on a small network", "an update that is not finite", "finite updates", cause)
    for what, engine, cause in (
        ("same stacked as one by one", stack, "a client axis, or a draw that has no key"),
        ("same in chunks of 1", partial(stack, chunk=1), "something that is shared between clients"),
        ("same in chunks of 2", partial(stack, chunk=2), "something that is shared between clients"),
        ("same captured and in threads", Threads, "branching on the value of a setting, or state kept in the object"),
    ):
        try:
            found = case.trial(engine)
        except Exception as e:  # a stranger's hooks may raise anything
            first = (str(e).strip() or type(e).__name__).splitlines()[0][:200]
            usual = "branching on a tensor, .item(), or writing in place; use torch.where"
            raise ConformanceError(f"{what}: found {first!r}, expected five rounds. Usual cause: {usual}.") from e
        _agree(found, truth, what, cause)
    return "same on every engine and in every chunk"


def same_in_any_order(case: AlgorithmCase) -> str | None:
    """A cohort is a set; and two runs are equal bit for bit."""
    forth, again = case.trial(), case.trial()
    cause = "torch.randn or a counter in the object; draw from a key instead"
    for a, b in ((again.server, forth.server), (again.rows(), forth.rows())):
        need_same(a, b, "two runs are equal bit for bit", cause)
    back = case.trial(cohorts=lambda r: some(3)(r)[::-1])
    _agree(back, forth, "same in any order of the cohort", "an update that depends on who came before")
    return "same in any order of the cohort, and bit for bit when run again"


def absent_clients_stay(case: AlgorithmCase) -> str | None:
    """Who does not take part keeps its state; who does gets its own."""
    problem = quadratics()
    made = train(problem, case.on(problem), 2)
    if made.store.empty or made.store.size == 1:
        return None
    before = tree.map(torch.clone, made.rows())
    made.run([1, 4])
    away = torch.tensor([0, 2, 3, 5])
    need_same(
        tree.rows(made.rows(), away), tree.rows(before, away), "absent clients keep their state", "a shared state"
    )
    return "absent clients keep their state"


def no_rate_no_move(case: AlgorithmCase) -> str:
    """A vanishing learning rate leaves every model where it is."""
    problem = quadratics()
    made = train(problem, case.on(problem, lr=1e-12), 3)
    cause = "a step that does not go through lr"
    need_close(made.server["params"], problem.model["params"], "a vanishing lr moves nothing", cause, 1e-6)
    return "a vanishing lr moves nothing"


def learns(case: AlgorithmCase) -> str:
    """What the clients predict with gets better on the quadratics."""
    problem = quadratics()
    made = train(problem, case.on(problem), 0)
    before = _mean_loss(made)
    for _ in range(15):
        made.run(made.everyone())
    after = _mean_loss(made)
    need(
        after < before, "learns (the clients' mean loss after 15 rounds)", after, f"below {before:.4g}", "a wrong sign"
    )
    return "learns"


def same_in_the_mirror(case: AlgorithmCase) -> str:
    """Training does not depend on which way is up: a problem and its mirror image give mirror images.

    About 0 for everyone; what claims to be exact may not depend on the origin either.
    """
    about = 1.0 if case.exact else 0.0
    problem, mirror = quadratics(), mirrored(quadratics(), about)
    seen = case.train(problem, 6, 2).server["params"]
    image = tree.map(lambda w: about - w, case.train(mirror, 6, 2).server["params"])
    cause = "controls or client states that start from random numbers, or from the model, instead of zeros"
    need_close(image, seen, "a mirrored problem gives the mirrored model", cause, 1e-4)
    return "a mirrored problem gives the mirrored model"


def control_is_the_mean(case: AlgorithmCase) -> str | None:
    """The server's control is the mean of all clients', those never seen included."""
    if case.control is None:
        return None
    what, cause = (
        "the server's control is the mean of the clients'",
        ("a client's new control that is computed but not stored, or a server's that is not scaled by |S|/N"),
    )
    made = case.train(quadratics(), 0)
    for r in range(5):
        made.run(some(2)(r))
        mean = tree.map(lambda x: x.mean(0), made.rows()["algorithm"][case.control])
        need_close(made.server[case.control], mean, f"{what} (round {r + 1})", cause, 1e-4)
    return what


def alone_is_sgd(case: AlgorithmCase) -> str | None:
    """One client, three rounds of four steps each: the server lands where the client's own SGD does."""
    problem = quadratics().only(3)
    found = flat(case.train(problem, 3).server["params"])
    row = problem.partition.of(0)[0]
    a, b = problem.columns["x"][row].reshape(len(found), len(found)), problem.columns["y"][row]
    w = flat(problem.model["params"])
    for _ in range(12):
        w = w - case.lr * a @ (w - b)
    gap, name = distance({"w": found}, {"w": w}), "one client alone is plain SGD"
    if case.alone is None:
        return f"{name}: differs by {gap:.2g} (not demanded)"
    cause = "a server step multiplied by the client's lr, or a correction that does not cancel for one client"
    if case.alone:
        need(gap < 1e-4, name, f"a relative difference of {gap:.3g}", "at most 0.0001", cause)
        return name
    need(
        gap > 1e-4, f"{name} (claimed not to be)", f"a difference of {gap:.3g}", "above 0.0001", "alone=False is wrong"
    )
    return None


def reaches_the_optimum(case: AlgorithmCase) -> str | None:
    """With everyone present."""
    return _optimum(case, 0)


def reaches_the_optimum_sampled(case: AlgorithmCase) -> str | None:
    """With half of the clients in each round: exposes biased controls and client states that are not kept."""
    return _optimum(case, 3) if case.sampled and case.exact else None


CHECKS: tuple[Callable[[AlgorithmCase], str | None], ...] = (
    declares_its_traits,
    hooks_keep_their_word,
    absent_clients_stay,
    no_rate_no_move,
    learns,
    same_in_the_mirror,
    control_is_the_mean,
    alone_is_sgd,
    reaches_the_optimum,
    reaches_the_optimum_sampled,
    same_on_every_engine,
    same_in_any_order,
)


def _optimum(case: AlgorithmCase, size: int) -> str | None:
    name = "reaches the true optimum" + (f" with {size} of 6 clients a round" if size else "")
    problem = quadratics()
    rounds = 2 * case.rounds if size else case.rounds // (2 if case.exact is False else 1)
    made = case.train(problem, rounds, size)
    target = optimum(problem, _weights(made))
    start = float((flat(problem.model["params"]).double() - target).norm())
    gap = float((flat(made.server["params"]).double() - target).norm()) / start if made.finite else float("inf")
    if case.exact is None:
        return f"{name}: {gap:.2g} of the way is left (not demanded)"
    found = f"{gap:.3g} of the distance from the start"
    if case.exact:
        cause = "a control with the wrong sign, one that is not stored, or drift that is not corrected at all"
        need(gap < 1e-4, name, found, "at most 0.0001", cause)
        return name
    need(gap > 1e-2, f"{name} (claimed not to)", found, "above 0.01", "exact=False is wrong: drift is corrected")
    return None


def _second_models(builder: Builder) -> list[str]:
    """The parameters that take a second model."""
    try:
        hints = {p.name: p.annotation for p in inspect.signature(builder, eval_str=True).parameters.values()}
    except NameError:  # a name that is only there for type checkers
        return []
    return [name for name, hint in hints.items() if SecondModel in (hint, *get_args(hint))]


def _weights(made: Federation) -> torch.Tensor:
    """What each client's update is weighted with, as `finish` says: by examples or all alike."""
    if made.algorithm.traits().pooled:
        return made.problem.partition.sizes.float()
    request = made.request(made.everyone(), client_state="read")
    result = made.engine.run(replace(request, program=replace(made.program, reducer=Collect())))
    if not len(result.partial):
        return torch.ones(len(request.ids))
    weights: torch.Tensor = result.partial.updates.weight
    return weights[torch.argsort(result.order)]


def _agree(a: Federation, b: Federation, what: str, cause: str) -> None:
    need_close(a.server, b.server, what, cause)
    need_close(a.rows(), b.rows(), f"{what}, client state", cause)


def _mean_loss(made: Federation) -> float:
    """The mean over clients of what each one's own model loses on its own data."""
    models, problem = made.models(), made.problem
    total = 0.0
    for i in range(problem.partition.size):
        own: Tree = tree.rows(models, 0 if made.algorithm.traits().pooled else i)
        rows = problem.partition.of(i)
        batch = {**tree.rows(problem.columns, rows), "mask": torch.ones(len(rows))}
        total += float(problem.task.loss(own["params"], own["buffers"], batch)[0])
    return total / problem.partition.size
