"""The rounds of a run, from the first to the last, with records, checkpoints and a clean stop."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from threading import Event
from typing import Any

import torch

from atoll import rng, tree
from atoll.config.setup import Setup
from atoll.core import Chain, Cohort, Job, Participation, Result, Spec
from atoll.core.settings import extract, resolve
from atoll.engines import AnyEngine, Choice, Ground, RowStore, Vector, arithmetic, client_bytes, default_budget, make
from atoll.engines.program import batch_of
from atoll.errors import DivergenceError, RankError
from atoll.ranks import ALONE, HomeRows, Ranked, World, deal
from atoll.ranks.world import cores
from atoll.rounds import Gossip, Parts, clients_key
from atoll.runs import checkpoint
from atoll.runs.clock import Clock, Timed
from atoll.runs.evaluate import Evaluation, Evaluator, Moment
from atoll.runs.folder import Folder
from atoll.runs.interrupts import deferred_interrupts
from atoll.runs.progress import Watcher
from atoll.runs.stopping import Stopping
from atoll.tree import Tree


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
        budget: int | None = None,  # bytes for the clients' memory
        world: World = ALONE,
    ) -> None:
        self.setup, self.folder, self.experiment, self.world = setup, folder, setup.experiment, world
        self.seed = setup.experiment.seed
        self.columns, self.test = data or on_device(setup)
        self.history: list[dict[str, Any]] = []
        self._drawn: tuple[int, Participation, Cohort] | None = None
        first = resolve(setup.algorithm, 0, [])
        self.server = setup.topology.init(first, setup.model, setup.population.size)
        self.like = setup.update_like()
        self.template, self.spec = self._bound(0)
        self.state, kept = self.template.init(self.like)
        self.state = tree.to(self.state, setup.device)
        rows = {"algorithm": first.memory(setup.model), "chain": kept}
        self.budget = default_budget(setup.device) // world.sharing
        self.memory = self._store(rows, budget or self.budget)
        self.chunk = self._chunk(choice or setup.choice, rows)
        self.own = self._engine(choice or setup.choice)
        self.engine = self.own if wrap is None else wrap(self.own)
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
            why = self.stopping(self.history)
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

    def checkpoint(self) -> None:
        """Write everything a resumed run needs; on rank 0, to which all memory comes."""
        memory = self.memory.state()
        self.world.first(lambda: self._write_checkpoint(memory))

    def _write_checkpoint(self, memory: Tree) -> None:
        parts = tree_cpu({"server": self.server, "state": self.state, "memory": memory})
        checkpoint.write(self.folder, parts, len(self.history))

    def _salvaged(self) -> str:
        """A rank was lost: keep the last whole round, unless memory went with the rank. Says where to go on from."""
        if self.world.rank:
            return ""
        if self.memory.empty and self.history:
            self._write_checkpoint(self.memory.state())
        return f"Last checkpoint: {checkpoint.last(self.folder)}. Go on with --resume, with any number of ranks."

    def resume(self) -> None:
        """Go back to the last checkpoint; without one, to the beginning."""
        parts: list[Tree] = []  # on rank 0, if there is a checkpoint
        self.history = self.world.first(lambda: self._read_checkpoint(parts))
        if not self.world.any(bool(parts)):
            return
        now = self.world.share(tree.select(parts[0], ("server", "state")) if parts else None)
        self.server, self.state = tree.to(now["server"], self.setup.device), tree.to(now["state"], self.setup.device)
        if not self.memory.empty:
            self.memory.load(parts[0]["memory"] if parts else None)  # type: ignore[arg-type]

    def _read_checkpoint(self, parts: list[Tree]) -> list[dict[str, Any]]:
        """Put what the checkpoint holds into `parts`, and the record back to where it was."""
        if not self.folder.has("checkpoint.pt"):
            return self.folder.cut(0)
        found, rounds = checkpoint.read(self.folder)
        checkpoint.belongs(self.folder, rounds, self._digest(tree.to(found["server"], self.setup.device)))
        parts.append(found)
        return [_as_read(entry) for entry in self.folder.cut(rounds)]

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
            with arithmetic(self.setup.device, self.setup.choice.precision):
                self._next_round(before)
        except RankError:
            self.server, self.state = before  # as they were when the last line was written
            raise

    def _next_round(self, before: tuple[Tree, Tree]) -> None:
        number = len(self.history)
        if isinstance(self.own, Vector):
            self.own.left = self.experiment.rounds - number
        clock = Clock()
        parts = self._parts(number)
        how, cohort = self._cohort(number)
        clock.lap("sample")
        if len(cohort):
            self.server, self.state, result = self.setup.topology.run(
                parts, cohort, self.server, self.state, rng.key(self.seed, "round", number)
            )
        else:
            nothing = torch.zeros(0)
            result = Result(None, nothing, nothing.bool(), nothing.long())
        clock.lap("server")
        clock.move("server", "train", parts.engine.seconds)  # type: ignore[attr-defined]
        dropped = self._dropped(number, cohort, result, before)
        found = self._evaluated(number, parts)
        clock.lap("evaluate")
        self._record(number, parts, cohort, how, result, dropped, found, clock)

    def _dropped(self, number: int, cohort: Cohort, result: Result, before: tuple[Tree, Tree]) -> list[int]:
        bad: list[int] = cohort.id[~result.finite.cpu()].tolist()
        if bad and self.experiment.on_divergence == "stop":
            self.server, self.state = before
            raise DivergenceError(
                f"round {number + 1}: the loss or the update of {_named(bad)} is not finite. Lower algorithm.lr or "
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
        good = result.loss[result.finite].cpu()
        weight = cohort.examples[result.finite.cpu()]
        entry: dict[str, Any] = {"round": number + 1}
        if len(good):
            entry["train_loss"] = float((good * weight).sum() / weight.sum())
        if found is not None:
            entry |= found.central
            entry["clients"] = found.clients
            if found.after is not None:
                entry["after"] = found.after
        entry["bytes"] = self.traffic(len(cohort))
        entry["cohort"] = {"size": len(cohort), "ids": cohort.id.tolist(), "how": _given(asdict(how))}
        entry["settings"] = {_dotted(k): _short(float(v)) for k, v in tree.paths(_settings(parts))}
        if dropped:
            entry["dropped"] = dropped
        entry["model"] = self._digest(self.server)
        clock.lap("record")
        entry["seconds"] = {**clock.seconds, **self._by_rank()}
        self._align(entry)
        each = None if found is None else {"round": number + 1, **found.each}
        self.history.append(_as_read(self.world.first(lambda: self._written(entry, each))))

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
        )

    def _draw_next(self, number: int) -> None:
        if number < self.experiment.rounds:
            self._drawn = (number, *self._draw(number))
            if isinstance(self.engine, Vector):
                self.engine.ahead(self._drawn[2], clients_key(rng.key(self.seed, "round", number)))

    def _bound(self, number: int) -> tuple[Chain, Spec]:
        return resolve(self.setup.chain, number, self.history).bind(self.setup.spec())

    def _cohort(self, number: int) -> tuple[Participation, Cohort]:
        """Who takes part and what they do: drawn while the device was at work on the round before, or now."""
        if self._drawn is None or self._drawn[0] != number:
            self._drawn = (number, *self._draw(number))
        return self._drawn[1:]

    def _draw(self, number: int) -> tuple[Participation, Cohort]:
        ids, how = self.setup.sampler.sample(self.setup.population.size, number, rng.key(self.seed, "cohort"))
        return how, self.setup.population.cohort(ids, rng.key(self.seed, "round", number, "order"))

    def _store(self, rows: Tree, budget: int) -> RowStore | HomeRows:
        """Every client's memory; on many ranks each holds that of the clients at home there."""
        population, device = self.setup.population, self.setup.device
        if self.world.size == 1 or not tree.leaves(rows):
            return RowStore(rows, population.size, device, budget)
        homes = deal(population.steps(torch.arange(population.size)), self.world.size)
        return HomeRows(rows, homes, self.world, device, budget)

    def _chunk(self, choice: Choice, rows: Tree) -> int:
        job = self.trial()
        budget = int(choice.memory_gb * 1e9) if choice.memory_gb else self.budget
        key = torch.zeros(2, dtype=torch.int64, device=self.setup.device)
        where = self.setup.device
        plan, count = job.cohort.plan[0, 0].to(where), job.cohort.count[0, 0].to(where)
        batch = batch_of(self.setup.dataset.training_decode, self.columns, plan, count, key)
        now = resolve(self.setup.algorithm, 0, [])
        sent = tree.rows(job.sent, 0) if job.each else job.sent
        carry = now.start(sent, rows["algorithm"])
        self.client_bytes = client_bytes(self.setup.task, self.setup.model, batch, carry, rows)
        return choice.chunk or max(1, budget // max(1, self.client_bytes))

    def _engine(self, choice: Choice) -> AnyEngine:
        task, setup = self.setup.task, self.setup
        keyed = task.keyed or setup.dataset.augment is not None
        refused = None
        if task.random:
            refused = "the model draws random numbers of its own (F.dropout instead of nn.Dropout?)"
        elif task.native:
            refused = f"the model changes its buffer {task.native[0]!r} in place"
        ground = Ground(self.columns, setup.dataset.training_decode, setup.device, keyed, refused)
        if self.world.size == 1:
            return make(choice, ground, self.chunk, self.trial())
        return self._same_engine(replace(choice, workers=choice.workers or self._cores()), ground)

    def _same_engine(self, choice: Choice, ground: Ground) -> AnyEngine:
        """The engine that rank 0 finds, on every rank."""
        made: list[AnyEngine] = []

        def decide() -> tuple[Any, str]:
            made.append(make(choice, ground, self.chunk, self.trial()))
            return made[0].name, made[0].reason

        name, reason = self.world.first(decide)
        return (
            made[0]
            if made
            else replace(make(replace(choice, name=name), ground, self.chunk, self.trial()), reason=reason)
        )

    def _cores(self) -> int:
        return max(1, cores() // self.world.local_size)


def on_device(setup: Setup) -> tuple[Tree, Tree | None]:
    """The columns of the training data, and of the test data if there is any, where they are needed."""
    test = setup.dataset.test
    return tree.to(setup.dataset.train, setup.device), None if test is None else tree.to(test, setup.device)


def tree_cpu(state: Any) -> Tree:
    """The tree on the host, without a gradient."""
    return tree.map(lambda x: x.detach().cpu(), state)  # type: ignore[no-any-return]


def round_up(x: float) -> int:
    """Whole bytes."""
    return int(-(-x // 1))


def _settings(parts: Parts) -> Tree:
    """The round's numbers, on the host: reading them back from a device would make it wait."""
    return {"algorithm": extract(parts.now), "chain": extract(parts.layers)}


def _named(ids: list[int]) -> str:
    shown = ", ".join(map(str, ids[:8]))
    return f"client {shown}" if len(ids) == 1 else f"{len(ids)} clients ({shown}{', ...' if len(ids) > 8 else ''})"


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if v is not None}


def _as_read(entry: dict[str, Any]) -> dict[str, Any]:
    """A line as schedules and stopping see it: NaN for what is not finite, whether it was just measured or is null."""
    return {
        k: math.nan if v is None or (isinstance(v, float) and not math.isfinite(v)) else v for k, v in entry.items()
    }


def _dotted(path: str) -> str:
    return path.replace("/inner", "").replace("/", ".")


def _short(x: float) -> float:
    """A float32 as people write it: 0.1, not 0.10000000149."""
    return float(f"{x:.7g}")
