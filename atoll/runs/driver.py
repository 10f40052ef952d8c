"""The rounds of a run, from the first to the last, with records, checkpoints and a clean stop."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from atoll import rng, tree
from atoll.config.setup import Setup
from atoll.core import Chain, Cohort, Job, Participation, Result, Spec
from atoll.core.settings import extract, resolve
from atoll.engines import (
    AnyEngine,
    Choice,
    Ground,
    Probe,
    RowStore,
    Vector,
    arithmetic,
    client_bytes,
    default_budget,
    default_path,
    make,
    taken,
    work_mark,
)
from atoll.engines.program import batch_of
from atoll.errors import DivergenceError
from atoll.rounds import Gossip, Parts, clients_key
from atoll.runs import checkpoint
from atoll.runs.clock import Clock, Timed
from atoll.runs.evaluate import Evaluation, Evaluator, Moment
from atoll.runs.folder import Folder
from atoll.runs.interrupts import deferred_interrupts
from atoll.runs.progress import Watcher
from atoll.runs.stopping import Stopping
from atoll.tree import Tree

_ENOUGH = 3  # rounds whose fastest is taken for what a round takes


class Driver:
    """Holds the state of a run between rounds: server, transforms, memory, history."""

    def __init__(
        self,
        setup: Setup,
        folder: Folder,
        choice: Choice | None = None,
        *,
        wrap: Callable[[AnyEngine], AnyEngine] | None = None,
        data: tuple[Tree, Tree | None] | None = None,  # training and test columns that are on the device already
        budget: int | None = None,  # bytes for the clients' memory, at most
    ) -> None:
        self.setup, self.folder, self.experiment = setup, folder, setup.experiment
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
        self.choice = choice = choice or setup.choice
        self.budget = int(choice.memory_gb * 1e9) if choice.memory_gb else default_budget(setup.device)
        where = Path(choice.spill) if choice.spill else folder.path
        held = min(self.budget, budget or self.budget)
        self.memory = RowStore(rows, setup.population.size, setup.device, held, where)
        self.chunk = self._chunk(choice, rows)
        self.ground = self._ground()
        self.own = make(choice, self.ground, self.chunk, self.trial())
        self.engine = self.own if wrap is None else wrap(self.own)
        self.pace, self.rounds_timed = math.inf, 0  # the fewest seconds that a client's step took
        self.evaluator = Evaluator(setup, self.engine, self.columns, self.test)
        self.stopping = Stopping(setup.experiment.stop, setup.schedules())

    def run(self, watch: Watcher) -> str:
        """Every round that is left; says why it ended: "finished", "stopped early: ...", or "interrupted"."""
        rounds, every = self.experiment.rounds, self.experiment.checkpoint.every
        with deferred_interrupts() as interrupted:
            while len(self.history) < rounds:
                why = self.stopping(self.history)
                if why:
                    return self._ended(f"stopped early: {why}")
                self.next_round()
                done = len(self.history)
                watch(done, rounds, self.history[-1])
                if interrupted.is_set() and done < rounds:
                    return self._ended("interrupted")
                if every and done % every == 0 and done < rounds:
                    self.checkpoint()
        return self._ended("finished")

    def checkpoint(self) -> None:
        """Write everything a resumed run needs."""
        parts = tree_cpu({"server": self.server, "state": self.state})
        checkpoint.write(self.folder, parts, self.memory, len(self.history))

    def resume(self) -> None:
        """Go back to the last checkpoint; without one, to the beginning."""
        if not self.folder.has("checkpoint.pt"):
            self.history = self.folder.cut(0)
            return
        saved = checkpoint.read(self.folder)
        server = tree.to(saved.parts["server"], self.setup.device)
        checkpoint.belongs(self.folder, saved.rounds, self._digest(server))
        self.memory.load(checkpoint.rows(self.folder, saved, self.memory.layout))
        self.history = [_as_read(entry) for entry in self.folder.cut(saved.rounds)]
        self.server, self.state = server, tree.to(saved.parts["state"], self.setup.device)

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
        with arithmetic(self.setup.device, self.setup.choice.precision):
            self._next_round()

    def _next_round(self) -> None:
        number = len(self.history)
        if isinstance(self.engine, Vector):
            self.engine.left = self.experiment.rounds - number
        clock = Clock()
        parts = self._parts(number)
        how, cohort = self._cohort(number)
        clock.lap("sample")
        before = self.server, self.state
        if len(cohort):
            self.server, self.state, result = self.setup.topology.run(
                parts, cohort, self.server, self.state, rng.key(self.seed, "round", number)
            )
        else:
            nothing = torch.zeros(0)
            result = Result(None, nothing, nothing.bool(), nothing.long())
        clock.lap("server")
        clock.move("server", "train", parts.engine.seconds)  # type: ignore[attr-defined]
        if len(cohort):
            self.pace = min(self.pace, parts.engine.seconds / max(1, int(cohort.steps.sum())))  # type: ignore[attr-defined]
            self.rounds_timed += 1
        dropped = self._dropped(number, cohort, result, before)
        found = self._evaluated(number, parts)
        clock.lap("evaluate")
        self._record(number, parts, cohort, how, result, dropped, found, clock)

    def _dropped(self, number: int, cohort: Cohort, result: Result, before: tuple[Tree, Tree]) -> list[int]:
        bad: list[int] = cohort.id[~result.finite.cpu()].tolist()
        if bad and self.experiment.on_divergence == "stop":
            self.server, self.state = before
            last = checkpoint.last(self.folder)
            raise DivergenceError(
                f"round {number + 1}: the loss or the update of {_named(bad)} is not finite. Lower algorithm.lr or "
                f"clip updates, or leave such clients out with on_divergence = 'drop'. Last checkpoint: {last}."
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
            last = checkpoint.last(self.folder)
            raise DivergenceError(f"round {done}, measuring: {e} Last checkpoint: {last}.") from e

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
            self.folder.write_clients({"round": number + 1, **found.each})
        entry["bytes"] = self.traffic(len(cohort))
        entry["cohort"] = {"size": len(cohort), "ids": cohort.id.tolist(), "how": _given(asdict(how))}
        entry["settings"] = {_dotted(k): _short(float(v)) for k, v in tree.paths(_settings(parts))}
        if dropped:
            entry["dropped"] = dropped
        entry["model"] = self._digest(self.server)
        clock.lap("record")
        entry["seconds"] = clock.seconds
        self.folder.append(entry)
        self.history.append(_as_read(entry))

    def _digest(self, server: Tree) -> str:
        return tree.digest(self.setup.topology.model(server))

    def _ended(self, why: str) -> str:
        self.folder.save("model.pt", self.model())
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

    def _chunk(self, choice: Choice, rows: Tree) -> int:
        job = self.trial()
        key = torch.zeros(2, dtype=torch.int64, device=self.setup.device)
        where = self.setup.device
        plan, count = job.cohort.plan[0, 0].to(where), job.cohort.count[0, 0].to(where)
        batch = batch_of(self.setup.dataset.training_decode, self.columns, plan, count, key)
        now = resolve(self.setup.algorithm, 0, [])
        sent = tree.rows(job.sent, 0) if job.each else job.sent
        carry = now.start(sent, rows["algorithm"])
        self.client_bytes = client_bytes(self.setup.task, self.setup.model, batch, carry, rows)
        return choice.chunk or max(1, self.budget // max(1, self.client_bytes))

    def _ground(self) -> Ground:
        task, setup = self.setup.task, self.setup
        keyed = task.keyed or setup.dataset.augment is not None
        refused = None
        if task.random:
            refused = "the model draws random numbers of its own (F.dropout instead of nn.Dropout?)"
        elif task.native:
            refused = f"the model changes its buffer {task.native[0]!r} in place"
        return Ground(self.columns, setup.dataset.training_decode, setup.device, keyed, refused)

    def _confirm(self) -> None:
        """Let the memory of measurements know how long it really took."""
        alone = self.engine is self.own  # else the seconds are of several runs
        if self.choice.name == "auto" and alone and self.rounds_timed >= _ENOUGH:
            mark = work_mark(self.choice, self.ground, self.trial())
            Probe(default_path()).confirm(mark, taken(self.own), self.pace)


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
    """A line as schedules and stopping see it: NaN for what is not finite, whether it was just measured or is null.

    Without the ids of the cohort, which the record has: all rounds are held, and must not take what cohorts take.
    """
    cohort = {k: v for k, v in entry["cohort"].items() if k != "ids"}
    kept = {**entry, "cohort": cohort}
    return {k: math.nan if v is None or (isinstance(v, float) and not math.isfinite(v)) else v for k, v in kept.items()}


def _dotted(path: str) -> str:
    return path.replace("/inner", "").replace("/", ".")


def _short(x: float) -> float:
    """A float32 as people write it: 0.1, not 0.10000000149."""
    return float(f"{x:.7g}")
