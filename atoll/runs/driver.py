"""The rounds of a run, from the first to the last, with records, checkpoints and a clean stop."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import torch

from atoll import rng, tree
from atoll.audit import drawn
from atoll.config.setup import Setup
from atoll.core import Chain, Cohort, Job, Participation, Result, Spec
from atoll.core.phases import phase
from atoll.core.settings import extract, resolve
from atoll.engines import (
    AnyEngine,
    Choice,
    Kept,
    Probe,
    RowStore,
    Vector,
    arithmetic,
    default_budget,
    default_path,
    taken,
    together,
    work_mark,
)
from atoll.errors import DivergenceError, RankError
from atoll.ranks import ALONE, HomeRows, Ranked, World
from atoll.rounds import Gossip, NoisySum, Parts, Planted, clients_key, nobody
from atoll.runs import checkpoint
from atoll.runs.account import Account, planted
from atoll.runs.clock import Clock, Timed
from atoll.runs.evaluate import Evaluation, Evaluator, Moment
from atoll.runs.folder import Folder
from atoll.runs.interrupts import deferred_interrupts
from atoll.runs.line import as_read, line, named
from atoll.runs.making import engine, ground, on_device, one_client, store
from atoll.runs.profiling import Profile
from atoll.runs.progress import Watcher
from atoll.runs.stopping import Stopping
from atoll.tree import Tree

_ENOUGH = 3  # rounds whose fastest is taken for what a round takes


class Driver:
    """Holds the state of a run between rounds: server, transforms, memory, history.

    On many ranks each holds the same, but for the memory; only rank 0 writes. `wrap` goes around the engine.
    """

    def __init__(
        self,
        setup: Setup,
        folder: Folder,
        choice: Choice | None = None,
        *,
        wrap: Callable[[AnyEngine], AnyEngine] | None = None,
        data: tuple[Tree, Tree | None] | None = None,  # training and test columns that are on the device already
        budget: int | None = None,  # bytes for the clients' memory, at most
        world: World = ALONE,
    ) -> None:
        self.setup, self.folder, self.experiment, self.world = setup, folder, setup.experiment, world
        self.seed = setup.experiment.seed
        self.columns, self.test = data or on_device(setup)
        self.history: list[dict[str, Any]] = []
        self.profile: Profile | None = None
        self.together = 1  # runs that share its seconds, as one stack
        self._drawn: tuple[int, Participation, Cohort] | None = None
        self._layers: tuple[int, Chain, Spec] | None = None
        first = resolve(setup.algorithm, 0, [])
        self.server = setup.topology.init(first, setup.model, setup.population.size)
        self.like = setup.update_like()
        self.template, self.spec = self._bound(0)
        self.state, kept = self.template.init(self.like)
        self.state = tree.to(self.state, setup.device)
        self.private = NoisySum.of(self.spec, setup.how, self.template.zeros(self.like, self.state, kept))
        self.canaries = planted(setup, self.like)
        self.account = Account.of(setup, self.template, self.canaries)
        rows = {"algorithm": first.memory(setup.model), "chain": kept}
        self.choice = choice = choice or setup.choice
        whole = int(choice.memory_gb * 1e9) if choice.memory_gb else default_budget(setup.device) // world.sharing
        where = Path(choice.spill) if choice.spill else folder.path
        self.memory = store(setup, rows, min(whole, budget or whole), where, world)
        self.client_bytes = one_client(setup, self.columns, self.trial(), rows)
        self.chunk = choice.chunk or max(1, whole // max(1, self.client_bytes))
        self.ground = ground(setup, self.columns)
        self.own = engine(choice, self.ground, self.chunk, self.trial(), world)
        self.engine = self.own if wrap is None else wrap(self.own)
        self.pace, self.rounds_timed = math.inf, 0  # the fewest seconds that a client's step took
        measuring = self.engine if world.size == 1 else self.own
        self.evaluator = Evaluator(setup, measuring, self.columns, self.test, world)
        self.stopping = Stopping(setup.experiment.stop, setup.schedules())

    def run(self, watch: Watcher) -> str:
        """Every round that is left; says why it ended: "finished", "stopped early: ...", or "interrupted"."""
        with deferred_interrupts() as interrupted:
            try:
                return self._rounds(watch, interrupted)
            except RankError as e:
                raise RankError(f"{e} {self._salvaged()}") from e

    def _rounds(self, watch: Watcher, interrupted: Event) -> str:
        rounds, every = self.experiment.rounds, self.experiment.checkpoint.every
        while len(self.history) < rounds:
            why = self.stopping(self.history) or self._unaffordable()
            if why:
                return self._ended(f"stopped early: {why}")
            self.next_round()
            done = len(self.history)
            if self.world.rank == 0:
                watch(done, rounds, self.history[-1])
            if self.world.any(interrupted.is_set()) and done < rounds:
                return self._ended("interrupted")
            if every and done % every == 0 and done < rounds:
                self.checkpoint()
        return self._ended("finished")

    def _unaffordable(self) -> str | None:
        if self.account is None:
            return None
        number = len(self.history)
        return self.account.affords(self._bound(number)[0], self._cohort(number)[0])

    def checkpoint(self) -> None:
        """Write everything a resumed run needs; on rank 0, to which all memory comes."""
        held = self.memory.gathered() if isinstance(self.memory, HomeRows) else self.memory
        self.world.first(lambda: self._write_checkpoint(held))

    def _write_checkpoint(self, memory: RowStore | Kept) -> None:
        audit = {} if self.canaries is None else {"canaries": self.canaries.state()}
        parts = tree_cpu({"server": self.server, "state": self.state, **audit})
        checkpoint.write(self.folder, parts, memory, len(self.history))

    def _salvaged(self) -> str:
        """A rank was lost: keep the last whole round, unless memory went with the rank. Says where to go on from."""
        if self.world.rank:
            return ""
        if self.memory.empty and self.history:
            self._write_checkpoint(self.memory)  # type: ignore[arg-type]
        return f"Last checkpoint: {checkpoint.last(self.folder)}. Go on with --resume, with any number of ranks."

    def resume(self) -> None:
        """Go back to the last checkpoint; without one, to the beginning."""
        parts: list[Tree] = []  # on rank 0, if there is a checkpoint
        self.history = self.world.first(lambda: self._read_checkpoint(parts))
        if self.account is not None:
            self.account.replay(self.history, lambda number: self._bound(number)[0])
        if not self.world.any(bool(parts)):
            return
        names = ("server", "state") if self.canaries is None else ("server", "state", "canaries")
        now = self.world.share(tree.select(parts[0], names) if parts else None)
        self.server, self.state = tree.to(now["server"], self.setup.device), tree.to(now["state"], self.setup.device)
        if self.canaries is not None:
            self.canaries.load(now["canaries"])
        if isinstance(self.memory, HomeRows):
            self.memory.load(parts[0]["memory"] if parts else None)

    def _read_checkpoint(self, parts: list[Tree]) -> list[dict[str, Any]]:
        """Put what the checkpoint holds into `parts`, and the record back to where it was."""
        if not self.folder.has("checkpoint.pt"):
            return self.folder.cut(0)
        saved = checkpoint.read(self.folder)
        checkpoint.belongs(self.folder, saved.rounds, self._digest(tree.to(saved.parts["server"], self.setup.device)))
        pieces = checkpoint.rows(self.folder, saved, self.memory.layout)
        if isinstance(self.memory, HomeRows):
            parts.append({**saved.parts, "memory": together(pieces, self.memory.layout)})
        else:
            self.memory.load(pieces)
            parts.append(saved.parts)
        return [as_read(entry) for entry in self.folder.cut(saved.rounds)]

    def model(self) -> Tree:
        """The learned model, keyed like the module's state."""
        return tree_cpu(self.setup.task.state(self.setup.topology.model(self.server)))

    def job(self, round: int) -> Job:
        """The work of one round, as an engine gets it."""
        return self._job(round, self._cohort(round)[1])

    def trial(self) -> Job:
        """The first round's work, to try an engine on; that of a few clients, where nobody comes to the first round."""
        job = self.job(0)
        if len(job.cohort):
            return job
        few = torch.arange(min(8, self.setup.population.size))
        return self._job(0, self.setup.population.cohort(few, rng.key(self.seed, "trial")))

    def _job(self, round: int, cohort: Cohort) -> Job:
        parts = self._parts(round)
        sent, each = self.setup.topology.sent(parts.now, self.server, cohort.id)
        return Job(
            parts.algorithm,
            parts.chain,
            parts.reducer,
            parts.settings,
            sent,
            self.state,
            cohort,
            self.memory,
            rng.key(self.seed, "trial"),
            each,
        )

    def traffic(self, clients: int) -> dict[str, int]:
        """Bytes up and down in a round of so many clients."""
        topology = self.setup.topology
        if isinstance(topology, Gossip):
            each = tree.nbytes(self.setup.model) * topology.links(self.setup.population.size)
            return {"up": each, "down": each}
        sent, _ = topology.sent(self.setup.algorithm, self.server, torch.zeros(1, dtype=torch.int64))
        up = clients * tree.count(self.like) * self.spec.bits / 8
        return {"up": round_up(up), "down": clients * tree.nbytes(sent)}

    def next_round(self) -> None:
        """One more round: sample, train, apply, measure, record."""
        before = self.server, self.state
        try:
            with arithmetic(self.setup.device, self.setup.choice.precision), self._watched():
                self._next_round(before)
        except RankError:
            self.server, self.state = before  # as they were when the last line was written
            raise

    def _watched(self) -> AbstractContextManager[None]:
        return nullcontext() if self.profile is None else self.profile.round(len(self.history), self.experiment.rounds)

    def _next_round(self, before: tuple[Tree, Tree]) -> None:
        number = len(self.history)
        if isinstance(self.own, Vector):
            self.own.left = self.experiment.rounds - number
        clock = Clock()
        parts = self._parts(number)
        with phase("sampling"):
            how, cohort = self._cohort(number)
        clock.lap("sample")
        if len(cohort) or parts.private is not None:
            with phase("server"):
                self.server, self.state, result = self.setup.topology.run(
                    parts, cohort, self.server, self.state, rng.key(self.seed, "round", number)
                )
        else:
            result = nobody()
        clock.lap("server")
        clock.move("server", "train", parts.engine.seconds)  # type: ignore[attr-defined]
        if len(cohort):
            self.pace = min(self.pace, parts.engine.seconds / max(1, int(cohort.steps.sum())))  # type: ignore[attr-defined]
            self.rounds_timed += 1
        dropped = self._dropped(number, cohort, result, before)
        with phase("evaluation"):
            found = self._evaluated(number, parts)
        clock.lap("evaluate")
        with phase("record"):
            self._record(number, parts, cohort, how, result, dropped, found, clock)

    def _dropped(self, number: int, cohort: Cohort, result: Result, before: tuple[Tree, Tree]) -> list[int]:
        bad: list[int] = cohort.id[~result.finite.cpu()].tolist()
        if bad and self.experiment.on_divergence == "stop":
            self.server, self.state = before
            raise DivergenceError(
                f"round {number + 1}: the loss or the update of {named(bad)} is not finite. Lower algorithm.lr or "
                f"clip updates, or leave such clients out with on_divergence = 'drop'. Last checkpoint: {self._last()}."
            )
        return bad

    def _evaluated(self, number: int, parts: Parts) -> Evaluation | None:
        done = number + 1
        if done % self.experiment.evaluate.every and done != self.experiment.rounds:
            return None
        key = rng.key(self.seed, "round", number, "evaluate")
        try:
            return self.evaluator(Moment(parts.now, parts.settings, self.server, self.memory, key))
        except DivergenceError as e:
            raise DivergenceError(f"round {done}, measuring: {e} Last checkpoint: {self._last()}.") from e

    def _last(self) -> str:
        return checkpoint.last(self.folder) if self.world.rank == 0 else "see rank 0"

    def _record(
        self,
        number: int,
        parts: Parts,
        cohort: Cohort,
        how: Participation,
        result: Result,
        dropped: list[int],
        found: Evaluation | None,
        clock: Clock,
    ) -> None:
        entry = line(number, parts, cohort, how, result, found)
        if self.account is not None:
            entry["privacy"] = self._spent(number, parts, cohort, how, result, dropped)
        entry["bytes"] = self.traffic(len(cohort))
        if dropped:
            entry["dropped"] = dropped
        entry["model"] = self._digest(self.server)
        clock.lap("record")
        entry["seconds"] = {**clock.seconds, **self._by_rank()}
        self._align(entry)
        each = None if found is None else {"round": number + 1, **found.each}
        self.history.append(as_read(self.world.first(lambda: self._written(entry, each))))

    def _spent(
        self, number: int, parts: Parts, cohort: Cohort, how: Participation, result: Result, dropped: list[int]
    ) -> dict[str, Any]:
        assert self.account is not None
        self.account.add(parts.layers, how, len(dropped))
        signal = None if result.signal is None else float(result.signal)
        return self.account.line(self._bound(number)[1], parts.layers, signal, len(cohort) - len(dropped))

    def _written(self, entry: dict[str, Any], each: dict[str, Any] | None) -> dict[str, Any]:
        if each is not None:
            self.folder.write_clients(each)
        self.folder.append(entry)
        return entry

    def _by_rank(self) -> dict[str, Any]:
        return {"ranks": self.engine.lap()} if isinstance(self.engine, Ranked) else {}

    def _align(self, entry: dict[str, Any]) -> None:
        """All ranks go on from rank 0's state. Sums are the same everywhere, but unlike processors may round unlike."""
        if self.world.size == 1:
            return
        marks = self.world.gather(entry["model"])
        astray = [rank for rank, mark in enumerate(marks) if mark != marks[0]]
        if astray:
            now = self.world.share({"server": self.server, "state": self.state})
            self.server, self.state = (tree.to(now[k], self.setup.device) for k in ("server", "state"))
            entry["realigned"] = astray

    def _digest(self, server: Tree) -> str:
        return tree.digest(self.setup.topology.model(server))

    def _ended(self, why: str) -> str:
        self.world.first(lambda: self.folder.save("model.pt", self.model()))
        self.checkpoint()
        self._confirm()
        return why

    def _parts(self, number: int) -> Parts:
        now = resolve(self.setup.algorithm, number, self.history)
        layers, _ = self._bound(number)
        settings: Tree = {"algorithm": extract(now), "chain": extract(layers)}
        engine: Any = Timed(self.engine) if hasattr(self, "engine") else None
        return Parts(
            self.setup.algorithm,
            self.template,
            now,
            layers,
            tree.to(settings, self.setup.device),
            self.setup.reducer,
            engine,
            self.memory,
            self.setup.statistics,
            lambda: self._draw_next(number + 1),
            self._private(number),
        )

    def _private(self, number: int) -> NoisySum | None:
        if self.private is None or self.canaries is None:
            return self.private
        how, clients = self._cohort(number)[0], self.setup.population.size
        often = drawn(self.setup.sampler, clients, len(self.canaries), number, rng.key(self.seed, "cohort"))
        return replace(self.private, planted=Planted(self.canaries, number, how, often))

    def _draw_next(self, number: int) -> None:
        if number < self.experiment.rounds:
            self._drawn = (number, *self._draw(number))
            if isinstance(self.engine, Vector):
                self.engine.ahead(self._drawn[2], clients_key(rng.key(self.seed, "round", number)))

    def _bound(self, number: int) -> tuple[Chain, Spec]:
        """The layers of a round and what is certain after them; a schedule sees the rounds before."""
        if self._layers is None or self._layers[0] != number:
            history = self.history[:number]
            self._layers = (number, *resolve(self.setup.chain, number, history).bind(self.setup.spec()))
        return self._layers[1:]

    def _cohort(self, number: int) -> tuple[Participation, Cohort]:
        """Who takes part and what they do: drawn while the device was at work on the round before, or now."""
        if self._drawn is None or self._drawn[0] != number:
            self._drawn = (number, *self._draw(number))
        return self._drawn[1:]

    def _draw(self, number: int) -> tuple[Participation, Cohort]:
        ids, how = self.setup.sampler.sample(self.setup.population.size, number, rng.key(self.seed, "cohort"))
        return how, self.setup.population.cohort(ids, rng.key(self.seed, "round", number, "order"))

    def _confirm(self) -> None:
        """Let the memory of measurements know how long it really took."""
        alone = self.engine is self.own  # else the seconds are of several runs
        if self.choice.name == "auto" and alone and self.rounds_timed >= _ENOUGH:
            mark = work_mark(self.choice, self.ground, self.trial())
            Probe(default_path()).confirm(mark, taken(self.own), self.pace)


def tree_cpu(state: Any) -> Tree:
    """The tree on the host, without a gradient."""
    return tree.map(lambda x: x.detach().cpu(), state)  # type: ignore[no-any-return]


def round_up(x: float) -> int:
    """Whole bytes."""
    return int(-(-x // 1))
